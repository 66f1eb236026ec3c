"""A poller killed at any time neither loses nor duplicates jobs.

The number of kills is 20; BATCHJOB_KILLS=200 is the long run.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema
from tests.batchjob_stats_db.simulated_source import (
    RUN_SECONDS,
    SimulatedSource,
    build_poller,
    is_finished,
)
from tests.helpers.waiting import scaled

JOBS = 20_000
KILLS = int(os.environ.get("BATCHJOB_KILLS", "20"))
ROOT = Path(__file__).parents[3]


@pytest.mark.e2e
def test_poller_killed_at_random_times_loses_and_duplicates_nothing(url, engine):
    rng = random.Random(17)
    source = SimulatedSource(JOBS)
    observer = build_poller(engine, source).store
    started_at, kills = time.monotonic(), 0
    while kills < KILLS:
        child = start_poller(url)
        try:
            # Python takes 0.6 s to start; then the kills are spread over some transactions.
            child.wait(rng.uniform(0.6, 0.9 + 20 / KILLS))
        except subprocess.TimeoutExpired:
            child.kill()
            kills += 1
        child.wait()
        if is_finished(observer, source):  # start again with an empty database
            check_tables(engine)
            delete_all_rows(engine)
    assert start_poller(url).wait(scaled(300)) == 0
    check_tables(engine)
    assert time.monotonic() - started_at < scaled(600)


@pytest.mark.e2e
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_two_concurrent_pollers_of_one_cluster(url, engine):
    """SQLite refuses the second one."""
    processes = [start_poller(url), start_poller(url)]
    assert [process.wait(scaled(300)) for process in processes] == [0, 0]
    check_tables(engine)


def start_poller(url):
    """Start a poller of the simulated scheduler; it exits when all jobs are recorded."""
    argv = [sys.executable, "-m", "tests.batchjob_stats_db.simulated_source"]
    argv += [url.render_as_string(hide_password=False), str(JOBS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def delete_all_rows(engine):
    with engine.begin() as db:
        for table in reversed(schema.metadata.sorted_tables):
            db.execute(sa.delete(table))


def check_tables(engine):
    """Assert that every job is there once, with its nodes, and that the daily sums are right."""
    poller = build_poller(engine, SimulatedSource(JOBS))
    poller.roll_up_due_days()
    with engine.connect() as db:
        job, node, daily = schema.job.c, schema.job_node.c, schema.daily_usage.c
        assert db.execute(sa.select(sa.func.count(job.id))).scalar() == JOBS
        assert db.execute(sa.select(sa.func.count(sa.distinct(job.jobid)))).scalar() == JOBS
        assert (
            db.execute(sa.select(sa.func.count(job.id)).where(job.state != "COMPLETED")).scalar()
            == 0
        )
        assert db.execute(sa.select(sa.func.count(node.node))).scalar() == 2 * JOBS
        sums = sa.select(sa.func.sum(daily.wall_seconds), sa.func.sum(daily.jobs_started))
        assert tuple(db.execute(sums).one()) == (JOBS * RUN_SECONDS, JOBS)
        assert db.execute(sa.select(schema.poll_state.c.watermark)).scalar() == str(JOBS)
