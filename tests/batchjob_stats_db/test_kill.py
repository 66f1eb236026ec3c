"""A poller killed at any instant loses nothing and doubles nothing.

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
from tests.batchjob_stats_db.simulated import RUN, Simulated, done, poller

JOBS = 20_000
KILLS = int(os.environ.get("BATCHJOB_KILLS", "20"))
ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
def test_killed_at_random_instants(url, engine):
    chance = random.Random(17)
    source = Simulated(JOBS)
    observer = poller(engine, source).store
    begun, kills = time.monotonic(), 0
    while kills < KILLS:
        child = started(url)
        try:
            # Python takes 0.6 s to start; then the instants are spread over some transactions.
            child.wait(chance.uniform(0.6, 0.9 + 20 / KILLS))
        except subprocess.TimeoutExpired:
            child.kill()
            kills += 1
        child.wait()
        if done(observer, source):  # all flowed already: begin again with an empty database
            check(engine)
            empty(engine)
    assert started(url).wait(300) == 0
    check(engine)
    assert time.monotonic() - begun < 600


@pytest.mark.e2e
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_two_pollers_of_one_cluster_at_a_time(url, engine):
    """SQLite refuses the second one."""
    pollers = [started(url), started(url)]
    assert [each.wait(300) for each in pollers] == [0, 0]
    check(engine)


def started(url):
    """A poller of the simulated scheduler, which ends when all jobs are on record."""
    argv = [sys.executable, "-m", "tests.batchjob_stats_db.simulated"]
    argv += [url.render_as_string(hide_password=False), str(JOBS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def empty(engine):
    with engine.begin() as db:
        for table in reversed(schema.metadata.sorted_tables):
            db.execute(sa.delete(table))


def check(engine):
    """Every job is there once, with its nodes; the days add up to the jobs."""
    made = poller(engine, Simulated(JOBS))
    made.roll_up_due_days()
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
        assert tuple(db.execute(sums).one()) == (JOBS * RUN, JOBS)
        assert db.execute(sa.select(schema.poll_state.c.watermark)).scalar() == str(JOBS)
