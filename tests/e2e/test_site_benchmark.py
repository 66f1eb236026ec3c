"""The site benchmark in its smallest form: all components, few nodes, some seconds."""

import os
import shutil

import pytest

from benchmarks.site.chain import Form
from benchmarks.site.figures import exposition, measured
from tests.batchjob_stats_db import postgresql_server

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("store", ["victoria-metrics", "prometheus"])
def test_site_benchmark_measures_every_component(store: str, long_form: bool) -> None:
    if store == "prometheus" and not long_form:
        pytest.skip("only with --long: the other store is tested in the same way")
    if os.geteuid() != 0:
        pytest.skip("a job of another user needs root")
    if not shutil.which(store) or postgresql_server.program_directory() is None:
        pytest.skip(f"not installed: {store} or PostgreSQL")
    nodes, jobs = 5, 4
    form = Form(nodes, jobs, job_seconds=4, interval=1, clients=4, asking=4, store=store)
    results = measured(form, exposition(jobs))
    assert results["nodes up"] == nodes
    assert results["series at once"] > nodes * jobs * 20
    assert results["jobs measured"] > 0
    # A cycle queries all of its jobs together, never one after the other.
    assert results["queries, a cycle"] < 60
    assert results["answers"] > 0
    assert results["poller, MB"] > 0
