"""The fast lane finds ten planted faults, and nothing in the tree as it is.

Only with --long, since the lane runs eleven times.
"""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.checkout import REPOSITORY, copy_checkout
from tests.helpers.fast_lane import FAST
from tests.helpers.processes import run


class Fault(NamedTuple):
    """A change of one file, and what the output of the lane must have."""

    file: str
    old: str
    new: str
    found_by: str


FAULTS = {
    "an import of a name that is gone": Fault(
        "collectors/emissions/providers/uk_grid.py",
        "    newest,\n",
        "    newest_value,\n",
        "Undefined name `newest`",
    ),
    "an import in a module that is loaded on demand": Fault(
        "batchjob_cli/mail.py",
        "client.problems import",
        "client.problem import",
        "No module named 'batchjob_cli.client.problem'",
    ),
    "an import in the wrong direction": Fault(
        "batchjob/schedulers/states.py",
        "\nfrom enum import StrEnum\n",
        "\nfrom enum import StrEnum\n\nimport batchjob_stats_db.days  # noqa: F401\n",
        "batchjob is not allowed to import batchjob_stats_db",
    ),
    "a query of a column that is not there": Fault(
        "batchjob_stats_db/queries/usage.py",
        "table.c.cluster.in_(",
        "table.c.clustor.in_(",
        "AttributeError: clustor",
    ),
    "a query that shows everybody's jobs": Fault(
        "batchjob_stats_db/database/access.py",
        "return sa.or_(sa.false(), ",
        "return sa.or_(sa.true(), ",
        r"FAILED tests/batchjob_stats_(db/queries|server)/",
    ),
    "a template that cannot be parsed": Fault(
        "batchjob_stats_server/pages/templates/clusters.html",
        "{% endfor %}",
        "",
        "TemplateSyntaxError",
    ),
    "a page without one of its values": Fault(
        "batchjob_stats_server/pages/clusters.py",
        "counts=counts",
        "count=counts",
        "'counts' is undefined",
    ),
    "a metric by another name": Fault(
        "batchjob/quantities/job.py",
        '"memory_current_bytes"',
        '"memory_used_now_bytes"',
        "test_contracts.py::test_metrics",
    ),
    "an option by another name": Fault(
        "collectors/emissions/site_factors.py",
        "    ca_file: str",
        "    authority_file: str",
        "test_contracts.py::test_",
    ),
    "a file of the kernel by another name": Fault(
        "batchjob/quantities/reading.py",
        'V2("memory.current")',
        'V2("memory.curremt")',
        "test_golden.py::test_exposition_matches_the_golden_file",
    ),
}


def run_fast_lane(folder: Path):
    """Run the lane in a copy of the checkout, one test after the other, to the first failure."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "BATCHJOB_TEST_PROCESSES": "0"}
    command = [folder / ".ci/fast", "-x", "-p", "no:cacheprovider"]
    return run(command, timeout=900, cwd=folder, env=environment)


@pytest.fixture
def checkout(tmp_path, long_form):
    if not long_form:
        pytest.skip("only with --long")
    copy_checkout(tmp_path)
    return tmp_path


def test_every_path_of_the_lane_exists():
    assert [name for name in FAST if not (REPOSITORY / "tests" / name).exists()] == []


@pytest.mark.e2e
def test_fast_lane_passes(checkout):
    done = run_fast_lane(checkout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("what", FAULTS)
def test_fast_lane_finds(what, checkout):
    fault = FAULTS[what]
    text = (checkout / fault.file).read_text()
    assert fault.old in text, "the fault must be planted elsewhere"
    (checkout / fault.file).write_text(text.replace(fault.old, fault.new, 1))
    done = run_fast_lane(checkout)
    print(done.stdout[-2000:], done.stderr[-2000:])
    assert done.returncode == 1
    assert re.search(fault.found_by, done.stdout + done.stderr)


def test_faults_can_be_planted():
    for fault in FAULTS.values():
        assert fault.old in (REPOSITORY / fault.file).read_text(), fault
