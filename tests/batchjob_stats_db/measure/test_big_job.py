"""Measuring a job of many nodes whose counters were reset takes little memory."""

import shutil

import pytest

from benchmarks.big_job import measured


@pytest.mark.parametrize(
    ("store", "nodes", "reset_nodes"),
    [("victoria-metrics", 50, 1), ("victoria-metrics", 50, 50), ("prometheus", 6, 6)],
)
def test_memory_used_while_measuring_a_large_job(store, nodes, reset_nodes):
    if not shutil.which(store):
        pytest.skip(f"no {store} is installed")
    result = measured(store, nodes, 24, reset_nodes)
    assert result["cpu_seconds"] == pytest.approx(result["expected"])
    assert result["peak_mb"] - result["before_mb"] < 100
