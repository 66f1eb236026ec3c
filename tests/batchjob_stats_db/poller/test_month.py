"""A small month of a busy centre by each kind of source; benchmarks/month.py runs large ones."""

import pytest

from batchjob.schedulers.registry import SOURCES
from benchmarks.month import KINDS

SMALL = {"sacct": (400, 3, 1200), "slurm_rest": (400, 3, 1200), "qstat": (500, 5, 1800),
         "bjobs": (500, 5, 1800), "runs": (500, 5, 1800)}  # fmt: skip


def test_there_is_a_month_for_each_source():
    assert set(KINDS) == {name for name, source in SOURCES.items() if not source.people}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_doubled_or_stale(tmp_path, kind):
    number, days, step = SMALL.get(kind, (500, 10, 7200))
    found = KINDS[kind](tmp_path, kind, number, seed=3, days=days, step=step)
    assert found.jobs > 0.6 * number
    assert found[1:] == (0, 0, 0, 0)  # lost, doubled, stale, unmeasured
