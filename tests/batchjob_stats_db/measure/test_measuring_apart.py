"""One job that cannot be measured, a store that sees half of its data, and ids used again."""

import contextlib
import json
import re

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.batches import measure_isolated
from batchjob_stats_db.measure.pending import due_jobs, measure_due
from batchjob_stats_db.timeseries.base import QueryFailed, TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_answers import PartialAnswer
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.batchjob_stats_db.conftest import NOW
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import SERVERS, line, prometheus, relayed, victoria_metrics

POLICY = UsagePolicy()
SMALL = [str(number) for number in range(20)]
LINES = [
    line("cpu_seconds_total", 5, NOW - 5000 + 30 * n, mode="user", jobid=jobid)
    for jobid in SMALL
    for n in range(10)
]
HUGE = [
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
def refusing(request):
    """A store for which one job is too much."""
    running, few = request.param
    with running(LINES + HUGE, few) as url:
        yield url


def due(rows):
    return {row["jobid"]: row["usage_due_time"] for row in rows(schema.job)}


def doubts(rows):
    jobids = {row["id"]: row["jobid"] for row in rows(schema.job)}
    return {jobids[row["job_id"]]: row["doubt"] for row in rows(schema.job_usage)}


def test_a_job_that_is_too_large_is_set_aside(refusing, store, job, rows, now):
    small = [job(jobid) for jobid in SMALL]
    store.write(Batch((job("huge"), *small), (), "", 0), "sacct")
    history = Prometheus(Endpoint(refusing))
    usages, failed = measure_due(store, history, POLICY, 30, now)
    assert {one.jobid for one in usages} == set(SMALL)
    assert [one.jobid for one in failed] == ["huge"]
    assert re.search("too many samples|more than .* samples", str(*failed.values()))
    assert doubts(rows)["huge"] == "not answered"
    assert due(rows)["huge"] == now + 3400  # as long as it has been over
    usages, failed = measure_due(store, history, POLICY, 30, now + 3400)
    assert "huge" in {one.jobid for one in failed}
    assert due(rows)["huge"] == now + 3 * 3400
    measure_due(store, history, POLICY, 30, now + 14 * 86400 + 43000)
    assert due(rows)["huge"] is None  # by then its samples are gone


def test_it_is_measured_once_the_store_can(refusing, store, job, rows, now):
    store.write(Batch((job("huge"),), (), "", 0), "sacct")
    measure_due(store, Prometheus(Endpoint(refusing)), POLICY, 30, now)
    with prometheus(HUGE) as url:
        _, failed = measure_due(store, Prometheus(Endpoint(url)), POLICY, 30, now + 3400)
    assert not failed
    assert "not answered" not in doubts(rows)["huge"]


def test_what_was_measured_while_it_ran_stays(refusing, store, job, rows, now):
    store.write(Batch((job("huge", end_time=None, start_time=now - 30000),), (), "", 0), "sacct")
    with prometheus(HUGE) as url:
        measure_due(store, Prometheus(Endpoint(url)), POLICY, 30, now + 22000)
    measure_due(store, Prometheus(Endpoint(refusing)), POLICY, 30, now + 60000)
    (usage,) = rows(schema.job_usage)
    assert usage["user_cpu_seconds"] == 20 * 1499
    assert usage["doubt"].endswith("not answered")


REMOTE = "remote_read: [{url: 'http://127.0.0.1:1/read', read_recent: true}]"


@contextlib.contextmanager
def half_a_prometheus():
    """What it was to read elsewhere is missing."""
    with prometheus(LINES, config=REMOTE) as url:
        yield url


@contextlib.contextmanager
def half_a_victoria_metrics():
    """What a cluster's vmselect makes of the answers while one of two vmstorage is away."""

    def said(content):
        answer = json.loads(content)
        del answer["data"]["result"][::2]
        return json.dumps({**answer, "isPartial": True}).encode()

    with victoria_metrics(LINES) as url, relayed(url, said=said) as relay:
        yield relay


@pytest.mark.parametrize(
    ("half", "said"),
    [(half_a_prometheus, "partial answer.*remote"), (half_a_victoria_metrics, "partial answer")],
)
def test_a_partial_answer_is_none(half, said, store, job, rows, now):
    store.write(Batch(tuple(job(jobid) for jobid in SMALL), (), "", 0), "sacct")
    with half() as url:
        history = Prometheus(Endpoint(url))
        with pytest.raises(PartialAnswer, match=said):
            measure_due(store, history, POLICY, 30, now)
    assert rows(schema.job_usage) == []
    assert set(due(rows).values()) == {now - 3400 + POLICY.settle_seconds}


def test_a_store_that_is_gone_sets_no_job_aside(store, job, rows, now):
    store.write(Batch((job("1"),), (), "", 0), "sacct")
    with pytest.raises(TimeSeriesError):
        measure_due(store, Prometheus(Endpoint("http://127.0.0.1:1")), POLICY, 30, now)
    assert rows(schema.job_usage) == []


class _Failing:
    """A store in which some jobs' questions fail."""

    source = "failing"

    def __init__(self, bad, error):
        self.bad, self.error, self.asked = bad, error, 0

    def measure(self, wanted, spans):
        self.asked += 1
        if any(span.jobid in self.bad for span in spans):
            raise self.error
        return {statistic: [] for statistic in wanted}


@pytest.mark.parametrize("error", [QueryFailed("no"), MemoryError(), ZeroDivisionError()])
def test_an_error_of_whatever_kind_is_one_job_s(store, job, now, error, engine):
    store.write(Batch(tuple(job(str(n)) for n in range(100)), (), "", 0), "sacct")
    with engine.connect() as db:
        jobs = due_jobs(db, "c1", POLICY, now, 1000)
    usages, failed = measure_isolated(_Failing({"17", "58"}, error), jobs, 30)
    assert {one.jobid for one in failed} == {"17", "58"}
    assert len(usages) == 98


def test_a_store_that_fails_for_each_job_is_at_fault_itself(store, job, now, engine):
    store.write(Batch(tuple(job(str(n)) for n in range(100)), (), "", 0), "sacct")
    with engine.connect() as db:
        jobs = due_jobs(db, "c1", POLICY, now, 1000)
    with pytest.raises(QueryFailed):
        measure_isolated(_Failing({one.jobid for one in jobs}, QueryFailed("no")), jobs, 30)


def _questions(history, jobs):
    """How many requests measuring takes."""
    asked = 0
    ask = history.client.ask

    def counting(*args):
        nonlocal asked
        asked += 1
        return ask(*args)

    history.client.ask = counting
    measure_isolated(history, jobs, 30)
    return asked


@pytest.mark.parametrize("running", SERVERS)
def test_ids_that_were_used_years_ago_cost_nothing(running, store, job, now, engine):
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
    with running(LINES) as url, contextlib.ExitStack() as stack:
        history = Prometheus(Endpoint(url))
        db = stack.enter_context(engine.connect())
        ordinary = _questions(history, due_jobs(db, "c1", POLICY, now, 1000))
        db.rollback()
        store.write(Batch(tuple(old), (), "", 0), "sacct")
        jobs = due_jobs(db, "c1", POLICY, now, 1000)
        assert len(jobs) == 300
        assert not any(one.span.near_other_run for one in jobs)
        assert _questions(Prometheus(Endpoint(url)), jobs) == ordinary


@pytest.mark.parametrize("opened", STORES)
def test_an_older_run_is_not_looked_at_for_the_sake_of_a_longer_job(
    opened, store, job, now, engine
):
    """A question is asked over the time of all its jobs: here of one that ran for 10 days."""
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
    with opened(lines) as history:
        usages, _ = measure_isolated(history, jobs, 30)
    used = {one.jobid: usage.values["user_cpu_seconds"] for one, usage in usages.items()}
    assert used == {"1": 7, "2": 3}


@pytest.mark.parametrize("opened", STORES)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_two_runs_of_an_id_that_are_due_together_are_told_apart(opened, store, job, rows, now):
    begun = (now - 90_000, now - 30_000)
    runs = [job("1", submit_time=at, start_time=at, end_time=at + 3600) for at in begun]
    store.write(Batch((*runs, job("2", start_time=now - 30_000)), (), "", 0), "sacct")
    lines = [
        line("cpu_seconds_total", grown * n, at + 30 * n, mode="user")
        for at, grown in zip(begun, (1, 5), strict=True)
        for n in range(1, 121)
    ]
    with opened(lines) as history:
        measure_due(store, history, POLICY, 30, now)
    jobs = {row["id"]: row for row in rows(schema.job)}
    used = {
        jobs[row["job_id"]]["start_time"]: row["user_cpu_seconds"]
        for row in rows(schema.job_usage)
        if jobs[row["job_id"]]["jobid"] == "1"
    }
    assert used == {begun[0]: 120, begun[1]: 600}
