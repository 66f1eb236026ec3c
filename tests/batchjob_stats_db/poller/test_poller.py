"""Cycles: what flows, what fails, and what goes on nevertheless."""

import threading
import urllib.error
import urllib.request

import pytest
import sqlalchemy as sa

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import Association, Associations, Role
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import reader_engine
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.health import HealthServer
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.pace import Pace
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import TimeSeriesError
from tests.batchjob_stats_db.simulated import RUN, Simulated, poller


def value(made, name, **labels):
    return made.metrics.registry.get_sample_value(f"batchjob_stats_db_{name}", labels)


def cycles(made, number=9):
    return [made.run_cycle() for _ in range(number)]


def test_jobs_flow_through(engine, rows):
    source = Simulated(700, step=200)
    made = poller(engine, source)
    assert all(cycles(made))
    jobs = rows(schema.job)
    assert len(jobs) == 700
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    assert len(rows(schema.job_node)) == 1400
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == 700 * RUN
    assert rows(schema.rollup_due) == [] or len(rows(schema.rollup_due)) <= 1
    assert value(made, "jobs_total", cluster="c1", outcome="new") == 700
    assert value(made, "unfinished_jobs", cluster="c1") == 0
    assert source.calls == 9  # one call in a cycle, however many jobs


class Broken(Simulated):
    def __init__(self):
        super().__init__(100)
        self.well = False

    def read(self, watermark, unfinished):
        batches = super().read(watermark, unfinished)
        yield next(batches)
        if not self.well:
            raise SchedulerError("sacct: no answer within 60 s")
        yield from batches


def test_a_scheduler_that_does_not_answer_is_asked_again_later(engine, rows):
    source = Broken()
    made = poller(engine, source)
    assert cycles(made, 1) == [False]
    (state,) = rows(schema.poll_state)
    assert state["error"] == "sacct: no answer within 60 s"
    assert value(made, "polls_total", cluster="c1", source="simulated", result="error") == 1
    source.well = True
    assert cycles(made, 1) == [True]
    assert len(rows(schema.job)) == 100


class NoHistory:
    source = "prometheus"

    def measure(self, wanted, spans):
        raise TimeSeriesError("http://tsdb: timed out")


def test_a_tsdb_that_is_down_costs_no_record(engine, rows):
    source = Simulated(50)
    made = poller(engine, source, history=NoHistory(), url="http://tsdb", retention=10**9)
    assert cycles(made, 1) == [False]
    assert len(rows(schema.job)) == 50
    assert value(made, "history_errors_total", cluster="c1") == 1
    assert all(job["usage_due_time"] for job in rows(schema.job))  # still due


def test_a_database_that_refuses_loses_nothing(engine, url, rows):
    source = Simulated(50)
    made = poller(engine, source)
    made.store.engine = reader_engine(url)
    assert cycles(made, 2) == [False, False]
    assert value(made, "database_errors_total", cluster="c1") == 2
    made.store.engine.dispose()
    made.store.engine = engine
    assert cycles(made, 1) == [True]
    assert len(rows(schema.job)) == 50


def test_a_full_disk_loses_nothing(url, engine, rows):
    if url.get_backend_name() != "sqlite":
        pytest.skip("PostgreSQL's disk is its own affair; it answers with an error like any other")
    source = Simulated(3000, step=3000)
    made = poller(engine, source)
    with engine.connect() as db:
        pages = db.exec_driver_sql("PRAGMA page_count").scalar()
        db.exec_driver_sql(f"PRAGMA max_page_count={pages + 50}")
    assert cycles(made, 1) == [False]
    assert 0 < len(rows(schema.job)) < 3000
    with engine.connect() as db:
        db.exec_driver_sql("PRAGMA max_page_count=1000000")
    assert cycles(made, 2)[-1]
    assert len(rows(schema.job)) == 3000


class Staff:
    name = "sacctmgr"
    cluster = "c1"

    def __init__(self, *people):
        self.people = people
        self.error = ""

    def check(self):
        return ("grant operator to this user",)

    def read(self):
        if self.error:
            raise SchedulerError(self.error)
        given = (Association("", "physics", name, Role.COORDINATOR) for name in self.people)
        return Associations(tuple(given), (), ())


def test_people_are_replaced_as_a_whole(engine, rows):
    staff, now = Staff("alice", "bob"), [0.0]
    made = poller_of(staff, engine, now)
    assert made.run_cycle()
    staff.people = ("bob", "carol")
    now[0] = 3601.0
    assert made.run_cycle()
    assert [row["username"] for row in rows(schema.association)] == ["bob", "carol"]


def poller_of(staff, engine, now):
    cluster = ClusterSettings("c1", (), (staff,), TsdbOptions())
    return Poller(
        cluster, Store(engine, "c1"), None, PollOptions(), RetentionOptions(), PollerMetrics(),
        monotonic=lambda: now[0],
    )  # fmt: skip


def test_people_that_could_not_be_read_are_asked_for_again_soon(engine, rows):
    staff, now = Staff("alice"), [0.0]
    made = poller_of(staff, engine, now)
    staff.error = "sacctmgr: exit status 1"
    assert not made.run_cycle()
    staff.error = ""
    now[0] = 121.0
    assert made.run_cycle()
    assert [row["username"] for row in rows(schema.association)] == ["alice"]
    staff.people = ("bob",)
    now[0] = 241.0
    made.run_cycle()
    assert [row["username"] for row in rows(schema.association)] == ["alice"]  # an hour's picture


def test_rights_are_checked(engine):
    made = poller(engine, Simulated(1))
    made.cluster = made.cluster._replace(people=(Staff(),))
    assert list(made.check()) == ["c1: sacctmgr: grant operator to this user"]


def test_a_backfill_goes_on_where_it_was_killed(engine, rows):
    source = Simulated(900, step=900)
    made = poller(engine, source)
    for _, _ in zip(range(3), made.backfill(source, 0), strict=False):
        pass  # killed after the third batch
    assert len(rows(schema.job)) == 600
    list(made.backfill(source, 0))
    assert len(rows(schema.job)) == 900
    assert [row["source"] for row in rows(schema.poll_state)] == ["simulated"]


def test_no_job_vanishes_in_a_backfill(engine, rows, monkeypatch):
    source = Simulated(10)
    seen = []
    monkeypatch.setattr(
        source, "read", lambda w, unfinished: (seen.append(unfinished), [Batch((), (), w, 0)])[1]
    )
    list(poller(engine, source).backfill(source, 0))
    assert seen == [{}]


def test_stopping_ends_between_transactions(engine, rows):
    made = poller(engine, Simulated(3000, step=3000))
    stop = threading.Event()
    stop.set()
    made.run_cycle(stop)
    assert len(rows(schema.job)) == 0  # the first batch has only the jobs that were unfinished


def test_pace():
    pace = Pace(60, 900)
    assert pace.is_due(0)
    pace.schedule_next(started=0, now=1, succeeded=True)
    assert pace.next_time == 60
    pace.schedule_next(started=100, now=130, succeeded=True)
    assert pace.next_time == 100 + 4 * 30  # slow: left alone for longer
    pace.schedule_next(started=100, now=101, succeeded=False)
    pace.schedule_next(started=200, now=201, succeeded=False)
    assert pace.next_time == 200 + 240
    for _ in range(30):
        pace.schedule_next(started=300, now=301, succeeded=False)
    assert pace.next_time == 300 + 900
    hourly = Pace(3600, 3600, retry=60)
    hourly.schedule_next(started=0, now=1, succeeded=False)
    assert hourly.next_time == 120
    hourly.schedule_next(started=120, now=121, succeeded=True)
    assert hourly.next_time == 120 + 3600


def test_health(engine):
    made = poller(engine, Simulated(1))
    wrong = [""]
    health = HealthServer(("127.0.0.1", 0), made.metrics.registry, lambda: "", lambda: wrong[0])
    health.start()
    try:
        base = f"http://127.0.0.1:{health.port}"
        made.run_cycle()
        with urllib.request.urlopen(f"{base}/metrics") as answer:
            assert b'batchjob_stats_db_jobs_total{cluster="c1",outcome="new"} 1.0' in answer.read()
        with urllib.request.urlopen(f"{base}/-/ready") as answer:
            assert answer.read() == b"ok\n"
        wrong[0] = "not polled yet: c1"
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            urllib.request.urlopen(f"{base}/-/ready")
        caught.value.close()
    finally:
        health.stop()


def test_the_watermark_and_the_rows_agree_after_every_cycle(engine):
    made = poller(engine, Simulated(1000, step=150))
    for _ in range(8):
        made.run_cycle()
        with engine.connect() as db:
            count = db.execute(sa.select(sa.func.count(schema.job.c.id))).scalar()
        assert int(made.store.watermark("simulated")) == count


def test_a_locked_database_loses_nothing(url, engine, rows):
    if url.get_backend_name() != "sqlite":
        pytest.skip("only SQLite locks the whole database")
    made = poller(engine, Simulated(50))
    impatient = sa.create_engine(url, connect_args={"timeout": 0.1})
    made.store.engine = impatient
    with engine.begin():  # somebody else writes, and takes his time
        assert cycles(made, 1) == [False]
    assert cycles(made, 1) == [True]
    impatient.dispose()
    assert len(rows(schema.job)) == 50


def test_a_second_backfill_of_a_cluster_idle_for_months_ends(engine, rows):
    source = Simulated(20)
    months = [0.0]
    made = poller(engine, source, clock=lambda: source.now + months[0])
    list(made.backfill(source, 0))
    months[0] = 120 * 86_400.0
    assert made.roll_up_due_days() == 1
    source.number = 21  # a correction is in the sums at once
    list(made.backfill(source, 0))
    assert made.roll_up_due_days() == 1
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == 21 * RUN
