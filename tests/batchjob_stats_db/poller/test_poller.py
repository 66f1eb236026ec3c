"""Cycles of the poller: recording, failures and recovery."""

import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry

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
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.reread import Pace
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import TimeSeriesError
from tests.batchjob_stats_db.simulated_source import RUN_SECONDS, SimulatedSource, build_poller
from tests.helpers.waiting import scaled, until


def metric_value(poller, name, **labels):
    return poller.metrics.registry.get_sample_value(f"batchjob_stats_db_{name}", labels)


def run_cycles(poller, number=9):
    return [poller.run_cycle() for _ in range(number)]


def test_all_jobs_are_recorded_and_summed(engine, rows):
    source = SimulatedSource(700, step=200)
    poller = build_poller(engine, source)
    assert all(run_cycles(poller))
    jobs = rows(schema.job)
    assert len(jobs) == 700
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    assert len(rows(schema.job_node)) == 1400
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == 700 * RUN_SECONDS
    assert rows(schema.rollup_due) == [] or len(rows(schema.rollup_due)) <= 1
    assert metric_value(poller, "jobs_total", cluster="c1", outcome="new") == 700
    assert source.calls == 9  # one call in a cycle, however many jobs


class FailingSource(SimulatedSource):
    def __init__(self):
        super().__init__(100)
        self.failure = "sacct: no answer within 60 s"

    def read(self, watermark, unfinished):
        batches = super().read(watermark, unfinished)
        yield next(batches)
        if self.failure:
            raise SchedulerError(self.failure)
        yield from batches


def test_failed_scheduler_query_is_recorded_and_retried(engine, rows):
    source = FailingSource()
    poller = build_poller(engine, source)
    assert run_cycles(poller, 1) == [False]
    (state,) = rows(schema.poll_state)
    assert state["error"] == "sacct: no answer within 60 s"
    assert (
        metric_value(poller, "polls_total", cluster="c1", source="simulated", result="error") == 1
    )
    source.failure = ""
    assert run_cycles(poller, 1) == [True]
    assert len(rows(schema.job)) == 100


def test_each_kind_of_failure_of_a_source_is_logged_once(engine, caplog):
    source = FailingSource()
    poller = build_poller(engine, source)
    kinds = (
        "no such file",
        "no such file",
        "HTTP 422 after 3 s",
        "HTTP 422 after 4 s",
        "no such file",
    )
    for kind in kinds:
        source.failure = kind
        run_cycles(poller, 1)
    logged = [text for text in caplog.messages if "no such" in text or "HTTP" in text]
    assert [text.rpartition(": ")[2] for text in logged] == ["no such file", "HTTP 422 after 3 s"]


class UnavailableHistory:
    source = "prometheus"

    def measure(self, wanted, spans):
        raise TimeSeriesError("http://tsdb: timed out")


def test_unavailable_tsdb_does_not_prevent_recording(engine, rows):
    source = SimulatedSource(50)
    poller = build_poller(
        engine, source, history=UnavailableHistory(), url="http://tsdb", retention=10**9
    )
    assert run_cycles(poller, 1) == [False]
    assert len(rows(schema.job)) == 50
    failed = {"cluster": "c1", "step": "measurements", "reason": "tsdb"}
    assert metric_value(poller, "step_errors_total", **failed) == 1
    assert all(job["usage_due_time"] for job in rows(schema.job))  # still due


def test_no_job_is_lost_while_the_database_rejects_writes(engine, url, rows):
    source = SimulatedSource(50)
    poller = build_poller(engine, source)
    poller.store.engine = reader_engine(url)
    assert run_cycles(poller, 2) == [False, False]
    failed = {"cluster": "c1", "step": "simulated", "reason": "database"}
    assert metric_value(poller, "step_errors_total", **failed) == 2
    poller.store.engine.dispose()
    poller.store.engine = engine
    assert run_cycles(poller, 1) == [True]
    assert len(rows(schema.job)) == 50


def test_no_job_is_lost_when_the_disk_is_full(url, engine, rows):
    if url.get_backend_name() != "sqlite":
        pytest.skip("PostgreSQL reports a full disk like any other error")
    source = SimulatedSource(3000, step=3000)
    poller = build_poller(engine, source)
    with engine.connect() as db:
        pages = db.exec_driver_sql("PRAGMA page_count").scalar()
        db.exec_driver_sql(f"PRAGMA max_page_count={pages + 50}")
    assert run_cycles(poller, 1) == [False]
    assert 0 < len(rows(schema.job)) < 3000
    with engine.connect() as db:
        db.exec_driver_sql("PRAGMA max_page_count=1000000")
    assert run_cycles(poller, 2)[-1]
    assert len(rows(schema.job)) == 3000


class AssociationSource:
    name = "sacctmgr"
    cluster = "c1"

    def __init__(self, *usernames):
        self.usernames = usernames
        self.error = ""

    def check(self):
        return ("grant operator to this user",)

    def read(self):
        if self.error:
            raise SchedulerError(self.error)
        coordinators = (
            Association("", "physics", name, Role.COORDINATOR) for name in self.usernames
        )
        return Associations(tuple(coordinators), (), ())


def test_associations_are_replaced_completely(engine, rows):
    associations, now = AssociationSource("alice", "bob"), [0.0]
    poller = build_poller_with_associations(associations, engine, now)
    assert poller.run_cycle()
    associations.usernames = ("bob", "carol")
    now[0] = 3601.0
    assert poller.run_cycle()
    assert [row["username"] for row in rows(schema.association)] == ["bob", "carol"]


def build_poller_with_associations(associations, engine, now):
    cluster = ClusterSettings("c1", (), (associations,), TsdbOptions())
    return Poller(
        cluster, Store(engine, "c1"), None, PollOptions(), RetentionOptions(), PollerMetrics(),
        monotonic=lambda: now[0],
    )  # fmt: skip


def test_failed_read_of_associations_is_retried_soon(engine, rows):
    associations, now = AssociationSource("alice"), [0.0]
    poller = build_poller_with_associations(associations, engine, now)
    associations.error = "sacctmgr: exit status 1"
    assert not poller.run_cycle()
    associations.error = ""
    now[0] = 121.0
    assert poller.run_cycle()
    assert [row["username"] for row in rows(schema.association)] == ["alice"]
    associations.usernames = ("bob",)
    now[0] = 241.0
    poller.run_cycle()
    assert [row["username"] for row in rows(schema.association)] == ["alice"]  # read once an hour


def test_check_reports_missing_rights(engine):
    poller = build_poller(engine, SimulatedSource(1))
    poller.cluster = poller.cluster._replace(associations=(AssociationSource(),))
    assert list(poller.check()) == ["c1: sacctmgr: grant operator to this user"]


def test_interrupted_backfill_resumes(engine, rows):
    source = SimulatedSource(900, step=900)
    poller = build_poller(engine, source)
    for _, _ in zip(range(3), poller.backfill(source, 0), strict=False):
        pass  # killed after the third batch
    assert len(rows(schema.job)) == 600
    list(poller.backfill(source, 0))
    assert len(rows(schema.job)) == 900
    assert [row["source"] for row in rows(schema.poll_state)] == ["simulated"]


def test_backfill_does_not_look_for_vanished_jobs(engine, rows, monkeypatch):
    source = SimulatedSource(10)
    unfinished_seen = []
    monkeypatch.setattr(
        source,
        "read",
        lambda w, unfinished: (unfinished_seen.append(unfinished), [Batch((), (), w, 0)])[1],
    )
    list(build_poller(engine, source).backfill(source, 0))
    assert unfinished_seen == [{}]


def test_stop_ends_the_cycle_after_a_transaction(engine, rows):
    poller = build_poller(engine, SimulatedSource(3000, step=3000))
    stop = threading.Event()
    stop.set()
    poller.run_cycle(stop)
    assert len(rows(schema.job)) == 0  # the first batch has only the jobs that were unfinished


def test_pace():
    pace = Pace(60, 900)
    assert pace.is_due(0)
    pace.schedule_next(started=0, now=1, succeeded=True)
    assert pace.next_time == 60
    pace.schedule_next(started=100, now=130, succeeded=True)
    assert pace.next_time == 100 + 4 * 30  # a slow cycle delays the next one
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


def test_health_server(engine):
    poller = build_poller(engine, SimulatedSource(1))
    problem = [""]
    health = HealthServer(("127.0.0.1", 0), poller.metrics.registry, lambda: "", lambda: problem[0])
    health.start()
    try:
        base = f"http://127.0.0.1:{health.port}"
        poller.run_cycle()
        with urllib.request.urlopen(f"{base}/metrics") as answer:
            assert b'batchjob_stats_db_jobs_total{cluster="c1",outcome="new"} 1.0' in answer.read()
        with urllib.request.urlopen(f"{base}/-/ready") as answer:
            assert answer.read() == b"ok\n"
        problem[0] = "not polled yet: c1"
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            urllib.request.urlopen(f"{base}/-/ready")
        caught.value.close()
    finally:
        health.stop()


def test_slow_and_silent_clients_of_the_health_server_are_few_and_end(engine, monkeypatch):
    monkeypatch.setattr("batchjob_stats_db.poller.health._MAX_CONNECTIONS", 3)
    monkeypatch.setattr("batchjob_stats_db.poller.health._MAX_SECONDS", 1.0)
    registry = build_poller(engine, SimulatedSource(1)).metrics.registry
    health = HealthServer(("127.0.0.1", 0), registry, lambda: "", lambda: "")
    health.start()
    before = threading.active_count()
    clients = [socket.create_connection(("127.0.0.1", health.port)) for _ in range(30)]
    try:
        for client in clients:
            client.settimeout(scaled(30))
            with contextlib.suppress(OSError):
                client.send(b"G")
        until(lambda: threading.active_count() > before)
        assert threading.active_count() <= before + 2 * 3  # a timer for each
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""

        def is_healthy():
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"http://127.0.0.1:{health.port}/-/healthy").read()

        assert until(is_healthy) == b"ok\n"
    finally:
        for client in clients:
            client.close()
        health.stop()


@pytest.mark.parametrize(
    ("method", "path", "status", "allow", "body"),
    [
        ("HEAD", "/-/healthy", 200, None, b""),
        ("HEAD", "/-/ready", 200, None, b""),
        ("HEAD", "/metrics", 200, None, b""),
        ("POST", "/-/ready", 405, "GET, HEAD", b"expected GET or HEAD\n"),
        ("OPTIONS", "/-/healthy", 405, "GET, HEAD", b"expected GET or HEAD\n"),
        ("DELETE", "/metrics", 405, "GET, HEAD", b"expected GET or HEAD\n"),
        ("POST", "/other", 404, None, b"not found\n"),
    ],
)
def test_methods_of_the_health_server(method, path, status, allow, body):
    health = HealthServer(("127.0.0.1", 0), CollectorRegistry(), lambda: "", lambda: "")
    health.start()
    connection = http.client.HTTPConnection("127.0.0.1", health.port)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Allow"], answer.read()) == (status, allow, body)
    finally:
        connection.close()
        health.stop()


def test_watermark_matches_the_rows_after_every_cycle(engine):
    poller = build_poller(engine, SimulatedSource(1000, step=150))
    for _ in range(8):
        poller.run_cycle()
        with engine.connect() as db:
            count = db.execute(sa.select(sa.func.count(schema.job.c.id))).scalar()
        assert int(poller.store.watermark("simulated")) == count


def test_no_job_is_lost_while_the_database_is_locked(url, engine, rows):
    if url.get_backend_name() != "sqlite":
        pytest.skip("only SQLite locks the whole database")
    poller = build_poller(engine, SimulatedSource(50))
    short_timeout_engine = sa.create_engine(url, connect_args={"timeout": 0.1})
    poller.store.engine = short_timeout_engine
    with engine.begin():  # another writer holds the lock
        assert run_cycles(poller, 1) == [False]
    assert run_cycles(poller, 1) == [True]
    short_timeout_engine.dispose()
    assert len(rows(schema.job)) == 50


def test_second_backfill_of_an_idle_cluster_ends(engine, rows):
    source = SimulatedSource(20)
    idle_seconds = [0.0]
    poller = build_poller(engine, source, clock=lambda: source.now + idle_seconds[0])
    list(poller.backfill(source, 0))
    idle_seconds[0] = 120 * 86_400.0
    assert poller.roll_up_due_days() == 1
    source.number = 21  # a correction is in the sums at once
    list(poller.backfill(source, 0))
    assert poller.roll_up_due_days() == 1
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == 21 * RUN_SECONDS
