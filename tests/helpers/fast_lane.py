"""The tests of the fast lane, `.ci/fast`: what breaks most often, in less than two minutes.

They load every module, run every query, route and page once, and compare the contracts with their
golden files. tests/test_fast_lane.py holds faults that they must find.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FAST = (
    "test_imports.py",
    "test_contracts.py",
    "test_docs.py",
    "test_documented_commands.py",
    "test_names.py",
    "batchjob/schedulers/test_states.py",
    "batchjob_cli/client/test_ask.py",
    "batchjob_exporter/test_exposition.py",
    "batchjob_exporter/test_options.py",
    "batchjob_stats_db/database/test_migrations.py",
    "batchjob_stats_db/queries",
    "batchjob_stats_server/api/test_answers.py",
    "batchjob_stats_server/api/test_jobs_routes.py",
    "batchjob_stats_server/pages/test_page_access.py",
    "batchjob_stats_server/test_access_matrix.py",
    "collectors/emissions/test_provider_contract.py",
    "collectors/jobs/test_families.py",
    "collectors/jobs/test_golden.py",
)


def is_fast(item: pytest.Item) -> bool:
    """Whether a test is in the fast lane: on SQLite alone, and without other servers."""
    parameters = getattr(item, "callspec", None)
    if item.get_closest_marker("e2e") or (
        parameters is not None and "postgresql" in parameters.params.values()
    ):
        return False
    name = item.path.relative_to(TESTS).as_posix()
    return any(name == each or name.startswith(f"{each}/") for each in FAST)


if __name__ == "__main__":
    print(*(f"tests/{name}" for name in FAST), sep="\n")
