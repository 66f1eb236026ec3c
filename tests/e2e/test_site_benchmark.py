"""The benchmark of a whole site in its smallest form: all parts, a few nodes, some seconds."""

import os
import shutil

import pytest

from benchmarks.site.chain import Form
from benchmarks.site.figures import exposition, measured
from tests.batchjob_stats_db import postgresql_server

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("store", ["victoria-metrics", "prometheus"])
def test_every_part_of_a_site_takes_what_the_one_before_gives(store: str, long_form: bool) -> None:
    if store == "prometheus" and not long_form:
        pytest.skip("only with --long: the other store is the same test")
    if os.geteuid() != 0:
        pytest.skip("a job of another user needs root")
    if not shutil.which(store) or postgresql_server.program_directory() is None:
        pytest.skip(f"not installed: {store} or PostgreSQL")
    nodes, jobs = 5, 4
    form = Form(nodes, jobs, job_seconds=4, interval=1, clients=4, asking=4, store=store)
    found = measured(form, exposition(jobs))
    assert found["nodes up"] == nodes
    assert found["series at once"] > nodes * jobs * 20
    assert found["jobs measured"] > 0
    # A cycle may ask for all of its jobs, but never for one after the other.
    assert found["queries, a cycle"] < 60
    assert found["answers"] > 0
    assert found["poller, MB"] > 0
