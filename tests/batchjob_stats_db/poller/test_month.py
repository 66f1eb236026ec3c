"""A small month of a busy centre; benchmarks/month.py runs large ones."""

import pytest

from benchmarks.month import logs_month, slurm_month


@pytest.mark.parametrize("seed", [1, 2])
def test_a_month_of_slurm(tmp_path, seed):
    found = slurm_month(tmp_path, 500, seed, days=3, step=1200)
    assert found.jobs >= 500
    assert found[1:] == (0, 0, 0)  # lost, doubled, stale


@pytest.mark.parametrize("kind", ["pbs_log", "lsb_acct", "jsonl"])
def test_a_month_of_logs(tmp_path, kind):
    found = logs_month(tmp_path, kind, 500, seed=3, days=14, step=7200)
    assert found.jobs >= 500
    assert found[1:] == (0, 0, 0)
