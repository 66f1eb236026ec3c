"""No short job is lost by an exporter that runs as its unit does, on a node that is full."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import exporter, short_jobs

pytestmark = pytest.mark.e2e

JOBS = 40
AT_ONCE = 6


@pytest.fixture(params=[2, 1], ids=["v2", "v1"])
def scopes(request: pytest.FixtureRequest) -> Iterator[list[Path]]:
    """This machine's own hierarchies."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not short_jobs.mounts(request.param):
        pytest.skip(f"cgroup v{request.param} is not mounted")
    with short_jobs.scopes(request.param) as tops:
        yield tops


def test_every_job_is_in_some_scrape_and_almost_all_cpu_seconds_are(scopes: list[Path]) -> None:
    random.seed(2)
    with (
        exporter.as_the_unit("--collector.disable-defaults", "--collector.jobs") as target,
        short_jobs.full_node(),
    ):
        watches = target.inotify_watches()
        kept = short_jobs.measured(
            scopes, target, JOBS, AT_ONCE, removed_after=0.05, seconds=(0.2, 1.0)
        )
        assert target.inotify_watches() <= watches + 8 * AT_ONCE  # those of ended jobs go
    print(f"{kept.jobs} jobs, {kept.scrapes} scrapes, {100 * kept.part:.2f} % of CPU seconds kept")
    assert not kept.unseen
    assert 0.9 <= kept.part <= 1.005  # benchmarks/node.py tells how much exactly
