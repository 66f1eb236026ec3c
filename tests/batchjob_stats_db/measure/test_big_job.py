"""A job of many nodes whose counters were reset takes little memory."""

import shutil

import pytest

from benchmarks.big_job import measured


@pytest.mark.parametrize("reset_nodes", [1, 50])
def test_memory_of_measuring(reset_nodes):
    if not shutil.which("victoria-metrics"):
        pytest.skip("no victoria-metrics is installed")
    found = measured(nodes=50, hours=24, reset_nodes=reset_nodes)
    assert found["cpu_seconds"] == pytest.approx(found["expected"])
    assert found["peak_mb"] - found["before_mb"] < 100
