"""How much is measured of the jobs that ended on each node."""

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import NodeShare
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.node_coverage import first_day
from batchjob_stats_db.measure.rollup import due_days, mark_days, roll_up
from batchjob_stats_db.queries.coverage import coverage_by_node

D0 = 20540 * DAY  # a midnight
HOUR = 3600


@pytest.fixture
def run(job):
    """A record of a job that ran so long on nodes, and ended so long after D0."""

    def make(jobid, nodes, end, seconds=HOUR):
        shares = tuple(NodeShare(name, 4, 1 << 30, None) for name in nodes)
        start = D0 + end - seconds
        return job(
            jobid, submit_time=start - 9, start_time=start, end_time=D0 + end,
            elapsed_seconds=seconds, nodes=shares, node_list=",".join(nodes),
        )  # fmt: skip

    return make


@pytest.fixture
def measured(engine):
    """Writes that a job of this id was measured, and need not be again."""

    def write(jobid, coverage, samples=9):
        job = schema.job
        with engine.begin() as db:
            number = db.scalar(sa.select(job.c.id).where(job.c.jobid == jobid))
            db.execute(sa.update(job).where(job.c.id == number).values(usage_due_time=None))
            db.execute(
                sa.insert(schema.job_usage).values(
                    job_id=number, source="x", measured_time=0, until_time=2**40, samples=samples,
                    dropped_series=0, nodes=1, coverage=coverage,
                )
            )  # fmt: skip
            mark_days(db, "c1", [D0, D0 + DAY])

    return write


@pytest.fixture
def coverage(engine):
    """By node: jobs, those unmeasured, and the coverage, as of a time after D0."""

    def made(now):
        with engine.begin() as db:
            for day in due_days(db, "c1", 100, D0 + now):
                roll_up(db, "c1", day, D0 + now)
            rows = coverage_by_node(db, "c1", first_day(D0 + now))
        return [(row["node"], row["jobs"], row["unmeasured"], row["coverage"]) for row in rows]

    return made


def test_the_mean_over_run_time_of_each_node(store, run, measured, coverage):
    store.write(
        Batch(
            (
                run("1", ["n1", "n2"], DAY + 100),
                run("2", ["n1"], 5 * HOUR, seconds=3 * HOUR),
                run("3", ["n3"], DAY + 200),
                run("4", ["n3"], DAY + 300, seconds=100),
                run("5", ["n3"], DAY + 400),
            ),
            (), "", 0,
        ),
        "s",
    )  # fmt: skip
    measured("1", 1.0)
    measured("2", 0.6)
    measured("3", 0.0, samples=0)
    measured("4", 1.0)  # a short one; the fifth is not measured yet
    assert coverage(DAY + 9000) == [
        ("n3", 1, 1, 0.0), ("n1", 2, 0, pytest.approx(0.7)), ("n2", 1, 0, 1.0)
    ]  # fmt: skip


def test_a_job_measured_later_counts_from_then_on(store, run, measured, coverage):
    store.write(Batch((run("1", ["n1"], DAY + 100),), (), "", 0), "s")
    assert coverage(DAY + 9000) == []
    measured("1", 0.5)
    assert coverage(DAY + 9060) == [("n1", 1, 0, 0.5)]


def test_today_and_yesterday_are_kept(store, run, measured, coverage, engine):
    store.write(Batch((run("1", ["n1"], 5 * HOUR), run("2", ["n2"], DAY + 100)), (), "", 0), "s")
    measured("1", 1.0)
    measured("2", 1.0)
    assert [row[0] for row in coverage(DAY + 9000)] == ["n1", "n2"]
    store.write(Batch((run("3", ["n3"], 2 * DAY + 100),), (), "", 0), "s")
    assert [row[0] for row in coverage(2 * DAY + 9000)] == ["n2"]
    with engine.connect() as db:
        days = db.scalars(sa.select(schema.daily_node_coverage.c.day).distinct()).all()
    assert days == [D0 + DAY]
