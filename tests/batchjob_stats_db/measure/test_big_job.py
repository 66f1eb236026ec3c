"""A job of many nodes whose counters were reset takes little memory."""

import shutil

import pytest

from benchmarks.big_job import measured


@pytest.mark.parametrize(
    ("store", "nodes", "reset_nodes"),
    [("victoria-metrics", 50, 1), ("victoria-metrics", 50, 50), ("prometheus", 6, 6)],
)
def test_memory_of_measuring(store, nodes, reset_nodes):
    if not shutil.which(store):
        pytest.skip(f"no {store} is installed")
    found = measured(store, nodes, 24, reset_nodes)
    assert found["cpu_seconds"] == pytest.approx(found["expected"])
    assert found["peak_mb"] - found["before_mb"] < 100
