"""Jobs that cannot be measured, stores with partial data, and reused job ids."""

import contextlib
import json
import re

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.pending import due_jobs, measure_due, measure_isolated
from batchjob_stats_db.timeseries.base import QueryFailed, TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_client import Endpoint, PartialAnswer
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.batchjob_stats_db.conftest import NOW
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import SERVERS, line, prometheus, query_relay, victoria_metrics

POLICY = UsagePolicy()
SMALL_JOBIDS = [str(number) for number in range(20)]
SMALL_LINES = [
    line("cpu_seconds_total", 5, NOW - 5000 + 30 * n, mode="user", jobid=jobid)
    for jobid in SMALL_JOBIDS
    for n in range(10)
]
HUGE_LINES = [
    line(
        "cpu_seconds_total", n, NOW - 5000 + n, mode="user", jobid="huge", instance=f"n{node:03}:1"
    )
    for node in range(20)
    for n in range(1500)
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((prometheus, "--query.max-samples=1000"), id="prometheus"),
        pytest.param((victoria_metrics, "-search.maxSamplesPerQuery=1000"), id="victoria_metrics"),
    ],
)
def limited_store(request):
    """A store whose sample limit one job exceeds."""
    open_server, limit_flag = request.param
    with open_server(SMALL_LINES + HUGE_LINES, limit_flag) as url:
        yield url


def due_times(rows):
    return {row["jobid"]: row["usage_due_time"] for row in rows(schema.job)}


def caveats_by_jobid(rows):
    jobids = {row["id"]: row["jobid"] for row in rows(schema.job)}
    return {jobids[row["job_id"]]: row["caveats"] for row in rows(schema.job_usage)}


def test_job_that_is_too_large_is_postponed(limited_store, store, job, rows, now):
    small = [job(jobid) for jobid in SMALL_JOBIDS]
    store.write(Batch((job("huge"), *small), (), "", 0), "sacct")
    history = Prometheus(Endpoint(limited_store))
    usages, failed = measure_due(store, history, POLICY, 30, now)
    assert {one.jobid for one in usages} == set(SMALL_JOBIDS)
    assert [one.jobid for one in failed] == ["huge"]
    assert re.search("too many samples|more than .* samples", str(*failed.values()))
    assert caveats_by_jobid(rows)["huge"] == "not answered"
    assert due_times(rows)["huge"] == now + 3400  # as long as the time since its end
    usages, failed = measure_due(store, history, POLICY, 30, now + 3400)
    assert "huge" in {one.jobid for one in failed}
    assert due_times(rows)["huge"] == now + 3 * 3400
    measure_due(store, history, POLICY, 30, now + 14 * 86400 + 43000)
    assert due_times(rows)["huge"] is None  # by then its samples are gone


def test_postponed_job_is_measured_once_the_store_allows_it(limited_store, store, job, rows, now):
    store.write(Batch((job("huge"),), (), "", 0), "sacct")
    measure_due(store, Prometheus(Endpoint(limited_store)), POLICY, 30, now)
    with prometheus(HUGE_LINES) as url:
        _, failed = measure_due(store, Prometheus(Endpoint(url)), POLICY, 30, now + 3400)
    assert not failed
    assert "not answered" not in caveats_by_jobid(rows)["huge"]


def test_earlier_measurement_of_a_failing_job_is_kept(limited_store, store, job, rows, now):
    store.write(
        Batch((job("huge", end_time=None, start_time=now - 30000, nodes=()),), (), "", 0), "sacct"
    )
    with prometheus(HUGE_LINES) as url:
        measure_due(store, Prometheus(Endpoint(url)), POLICY, 30, now + 22000)
    measure_due(store, Prometheus(Endpoint(limited_store)), POLICY, 30, now + 60000)
    (usage,) = rows(schema.job_usage)
    assert usage["user_cpu_seconds"] == 20 * 1499
    assert usage["caveats"].endswith("not answered")


REMOTE_READ_CONFIG = "remote_read: [{url: 'http://127.0.0.1:1/read', read_recent: true}]"


@contextlib.contextmanager
def prometheus_without_remote():
    """A Prometheus that cannot reach its remote storage."""
    with prometheus(SMALL_LINES, config=REMOTE_READ_CONFIG) as url:
        yield url


@contextlib.contextmanager
def partial_victoria_metrics():
    """Answers as of vmselect in a cluster while one of two vmstorage is down."""

    def drop_half_of_the_series(content):
        answer = json.loads(content)
        del answer["data"]["result"][::2]
        return json.dumps({**answer, "isPartial": True}).encode()

    with (
        victoria_metrics(SMALL_LINES) as url,
        query_relay(url, change_answer=drop_half_of_the_series) as relay,
    ):
        yield relay


@pytest.mark.parametrize(
    ("open_store", "message"),
    [
        (prometheus_without_remote, "partial answer.*remote"),
        (partial_victoria_metrics, "partial answer"),
    ],
)
def test_partial_answer_is_an_error(open_store, message, store, job, rows, now):
    store.write(Batch(tuple(job(jobid) for jobid in SMALL_JOBIDS), (), "", 0), "sacct")
    with open_store() as url:
        history = Prometheus(Endpoint(url))
        with pytest.raises(PartialAnswer, match=message):
            measure_due(store, history, POLICY, 30, now)
    assert rows(schema.job_usage) == []
    assert set(due_times(rows).values()) == {now - 3400 + POLICY.settle_seconds}


def test_unreachable_store_postpones_no_job(store, job, rows, now):
    store.write(Batch((job("1"),), (), "", 0), "sacct")
    with pytest.raises(TimeSeriesError):
        measure_due(store, Prometheus(Endpoint("http://127.0.0.1:1")), POLICY, 30, now)
    assert rows(schema.job_usage) == []


class _FailingStore:
    """A store in which the queries of some jobs fail."""

    source = "failing"

    def __init__(self, bad, error):
        self.bad, self.error = bad, error

    def measure(self, wanted, spans):
        if any(span.jobid in self.bad for span in spans):
            raise self.error
        return {statistic: [] for statistic in wanted}


@pytest.mark.parametrize("error", [QueryFailed("no"), MemoryError(), ZeroDivisionError()])
def test_any_error_affects_only_the_job_that_causes_it(store, job, now, error, engine):
    store.write(Batch(tuple(job(str(n)) for n in range(100)), (), "", 0), "sacct")
    with engine.connect() as db:
        jobs = due_jobs(db, "c1", POLICY, now, 1000)
    usages, failed = measure_isolated(_FailingStore({"17", "58"}, error), jobs, 30)
    assert {one.jobid for one in failed} == {"17", "58"}
    assert len(usages) == 98


def test_failure_for_every_job_is_a_failure_of_the_store(store, job, now, engine):
    store.write(Batch(tuple(job(str(n)) for n in range(100)), (), "", 0), "sacct")
    with engine.connect() as db:
        jobs = due_jobs(db, "c1", POLICY, now, 1000)
    with pytest.raises(QueryFailed):
        measure_isolated(_FailingStore({one.jobid for one in jobs}, QueryFailed("no")), jobs, 30)


def _count_requests(history, jobs):
    """Measure the jobs; the number of requests it took."""
    requests = 0
    original_ask = history.session.request

    def counting_ask(*args, **more):
        nonlocal requests
        requests += 1
        return original_ask(*args, **more)

    history.session.request = counting_ask
    measure_isolated(history, jobs, 30)
    return requests


@pytest.mark.parametrize("open_server", SERVERS)
def test_ids_used_years_ago_cause_no_extra_requests(open_server, store, job, now, engine):
    new = [job(str(n), start_time=now - 7000 + n, end_time=now - 3400) for n in range(300)]
    old = [
        job(
            str(n), submit_time=now - days * 86400, start_time=now - days * 86400,
            end_time=now - days * 86400 + 3600, state=new[0].state,
        )
        for days in (400, 800)
        for n in range(300)
    ]  # fmt: skip
    store.write(Batch(tuple(new), (), "", 0), "sacct")
    with open_server(SMALL_LINES) as url, contextlib.ExitStack() as stack:
        history = Prometheus(Endpoint(url))
        db = stack.enter_context(engine.connect())
        ordinary = _count_requests(history, due_jobs(db, "c1", POLICY, now, 1000))
        db.rollback()
        store.write(Batch(tuple(old), (), "", 0), "sacct")
        jobs = due_jobs(db, "c1", POLICY, now, 1000)
        assert len(jobs) == 300
        assert not any(one.window.near_other_run for one in jobs)
        assert _count_requests(Prometheus(Endpoint(url)), jobs) == ordinary


@pytest.mark.parametrize("open_history", STORES)
def test_longer_job_in_the_batch_does_not_bring_in_an_older_run(
    open_history, store, job, now, engine
):
    """A query spans the time of all its jobs: here of one that ran for 10 days."""
    first = job("1", submit_time=now - 500_000, start_time=now - 500_000, end_time=now - 490_000)
    long = job("2", submit_time=now - 900_000, start_time=now - 900_000)
    store.write(Batch((job("1"), first, long), (), "", 0), "sacct")
    with engine.connect() as db:
        jobs = [
            one for one in due_jobs(db, "c1", POLICY, now, 10) if one.start > now - 10_000
            or one.jobid == "2"
        ]  # fmt: skip
    lines = [
        line("cpu_seconds_total", 900, now - 495_000, mode="user"),
        line("cpu_seconds_total", 7, now - 5000, mode="user"),
        line("cpu_seconds_total", 3, now - 5000, mode="user", jobid="2"),
    ]
    with open_history(lines) as history:
        usages, _ = measure_isolated(history, jobs, 30)
    used = {one.jobid: usage.values["user_cpu_seconds"] for one, usage in usages.items()}
    assert used == {"1": 7, "2": 3}


@pytest.mark.parametrize("open_history", STORES)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_two_due_runs_of_one_id_are_measured_separately(open_history, store, job, rows, now):
    starts = (now - 90_000, now - 30_000)
    runs = [job("1", submit_time=at, start_time=at, end_time=at + 3600) for at in starts]
    store.write(Batch((*runs, job("2", start_time=now - 30_000)), (), "", 0), "sacct")
    lines = [
        line("cpu_seconds_total", growth * n, at + 30 * n, mode="user")
        for at, growth in zip(starts, (1, 5), strict=True)
        for n in range(1, 121)
    ]
    with open_history(lines) as history:
        measure_due(store, history, POLICY, 30, now)
    jobs = {row["id"]: row for row in rows(schema.job)}
    used = {
        jobs[row["job_id"]]["start_time"]: row["user_cpu_seconds"]
        for row in rows(schema.job_usage)
        if jobs[row["job_id"]]["jobid"] == "1"
    }
    assert used == {starts[0]: 120, starts[1]: 600}
