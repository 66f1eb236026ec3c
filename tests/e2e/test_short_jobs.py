"""An exporter that runs as its systemd unit does misses no short job on a busy node."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import exporter, short_jobs

pytestmark = pytest.mark.e2e

JOB_COUNT = 40
CONCURRENCY = 6


@pytest.fixture(params=[2, 1], ids=["v2", "v1"])
def top_cgroups(request: pytest.FixtureRequest) -> Iterator[list[Path]]:
    """Top cgroups in the hierarchies of this machine."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not short_jobs.cgroup_mounts(request.param):
        pytest.skip(f"cgroup v{request.param} is not mounted")
    with short_jobs.slurm_cgroups(request.param) as created_cgroups:
        yield created_cgroups


def test_no_short_job_is_missed_and_few_cpu_seconds_are_lost(top_cgroups: list[Path]) -> None:
    random.seed(2)
    with (
        exporter.as_the_unit("--collector.disable-defaults", "--collector.jobs") as target,
        short_jobs.busy_cpus(),
    ):
        initial_watches = target.inotify_watches()
        coverage = short_jobs.run_and_scrape_jobs(
            top_cgroups,
            target,
            JOB_COUNT,
            CONCURRENCY,
            removal_delay=0.05,
            lifetime_range=(0.2, 1.0),
        )
        # Watches of ended jobs are removed.
        assert target.inotify_watches() <= initial_watches + 8 * CONCURRENCY
    print(
        f"{coverage.job_count} jobs, {coverage.scrape_count} scrapes, "
        f"{100 * coverage.cpu_seconds_ratio:.2f} % of CPU seconds kept"
    )
    assert not coverage.unseen_jobs
    assert 0.9 <= coverage.cpu_seconds_ratio <= 1.005  # benchmarks/node.py measures the exact ratio
