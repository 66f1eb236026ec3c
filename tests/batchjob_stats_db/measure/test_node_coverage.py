"""Measurement coverage of the jobs that ended on each node."""

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import NodeShare
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.rollup import due_days, first_day, mark_days, roll_up
from batchjob_stats_db.queries.stats import coverage_by_node

D0 = 20540 * DAY  # a midnight
HOUR = 3600


@pytest.fixture
def ended_job(job):
    """Makes records of jobs: nodes, end in seconds after D0, and run time."""

    def make(jobid, nodes, end, seconds=HOUR):
        shares = tuple(NodeShare(name, 4, 1 << 30, None) for name in nodes)
        start = D0 + end - seconds
        return job(
            jobid, submit_time=start - 9, start_time=start, end_time=D0 + end,
            elapsed_seconds=seconds, nodes=shares, node_list=",".join(nodes),
        )  # fmt: skip

    return make


@pytest.fixture
def write_measurement(engine):
    """Writes the measurement of a job, which is then no longer due."""

    def write(jobid, coverage, samples=9):
        job = schema.job
        with engine.begin() as db:
            job_id = db.scalar(sa.select(job.c.id).where(job.c.jobid == jobid))
            db.execute(sa.update(job).where(job.c.id == job_id).values(usage_due_time=None))
            db.execute(
                sa.insert(schema.job_usage).values(
                    job_id=job_id, source="x", measured_time=0, until_time=2**40, samples=samples,
                    dropped_series=0, nodes=1, coverage=coverage,
                )
            )  # fmt: skip
            mark_days(db, "c1", [D0, D0 + DAY])

    return write


@pytest.fixture
def coverage(engine):
    """Node, jobs, unmeasured jobs and coverage, as of a time after D0."""

    def read(now):
        with engine.begin() as db:
            for day in due_days(db, "c1", 100, D0 + now):
                roll_up(db, "c1", day, D0 + now)
            rows = coverage_by_node(db, "c1", first_day(D0 + now))
        return [(row["node"], row["jobs"], row["unmeasured"], row["coverage"]) for row in rows]

    return read


def test_coverage_of_a_node_is_weighted_by_run_time(store, ended_job, write_measurement, coverage):
    store.write(
        Batch(
            (
                ended_job("1", ["n1", "n2"], DAY + 100),
                ended_job("2", ["n1"], 5 * HOUR, seconds=3 * HOUR),
                ended_job("3", ["n3"], DAY + 200),
                ended_job("4", ["n3"], DAY + 300, seconds=100),
                ended_job("5", ["n3"], DAY + 400),
            ),
            (), "", 0,
        ),
        "s",
    )  # fmt: skip
    write_measurement("1", 1.0)
    write_measurement("2", 0.6)
    write_measurement("3", 0.0, samples=0)
    write_measurement("4", 1.0)  # a short one; the fifth is not measured yet
    assert coverage(DAY + 9000) == [
        ("n3", 1, 1, 0.0), ("n1", 2, 0, pytest.approx(0.7)), ("n2", 1, 0, 1.0)
    ]  # fmt: skip


def test_job_measured_later_is_counted_from_then_on(store, ended_job, write_measurement, coverage):
    store.write(Batch((ended_job("1", ["n1"], DAY + 100),), (), "", 0), "s")
    assert coverage(DAY + 9000) == []
    write_measurement("1", 0.5)
    assert coverage(DAY + 9060) == [("n1", 1, 0, 0.5)]


def test_only_today_and_yesterday_are_kept(store, ended_job, write_measurement, coverage, engine):
    store.write(
        Batch((ended_job("1", ["n1"], 5 * HOUR), ended_job("2", ["n2"], DAY + 100)), (), "", 0), "s"
    )
    write_measurement("1", 1.0)
    write_measurement("2", 1.0)
    assert [row[0] for row in coverage(DAY + 9000)] == ["n1", "n2"]
    store.write(Batch((ended_job("3", ["n3"], 2 * DAY + 100),), (), "", 0), "s")
    assert [row[0] for row in coverage(2 * DAY + 9000)] == ["n2"]
    with engine.connect() as db:
        days = db.scalars(sa.select(schema.daily_node_coverage.c.day).distinct()).all()
    assert days == [D0 + DAY]
