"""A short simulated month of each kind of source; benchmarks/month.py runs long ones."""

import pytest

from batchjob.schedulers.registry import SOURCES
from benchmarks.month import KINDS

SMALL = {"sacct": (400, 3, 1200), "slurm_rest": (400, 3, 1200), "qstat": (500, 5, 1800),
         "bjobs": (500, 5, 1800), "runs": (500, 5, 1800)}  # fmt: skip


def test_every_source_has_a_simulated_month():
    assert set(KINDS) == {name for name, source in SOURCES.items() if not source.has_associations}


@pytest.mark.parametrize("kind", KINDS)
def test_no_job_is_lost_duplicated_or_stale(tmp_path, kind):
    job_count, days, step = SMALL.get(kind, (500, 10, 7200))
    result = KINDS[kind](tmp_path, kind, job_count, seed=3, days=days, step=step)
    assert result.jobs > 0.6 * job_count
    assert result[1:] == (0, 0, 0, 0)  # lost, doubled, stale, unmeasured
