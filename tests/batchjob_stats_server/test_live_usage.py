"""Lists show the current usage of running jobs, by one query for all, and never wait for long."""

import contextlib
import threading
import time

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.queries.efficiency import replace_usage, replace_usages
from batchjob_stats_db.queries.jobs import running
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.bounded_wait import BoundedWait
from batchjob_stats_server.live_usage import LiveUsage
from batchjob_stats_server.promql.histories import TimeSeriesPool
from tests.batchjob_stats_db.tsdb import SERVERS, line, prometheus, query_relay
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET
from tests.helpers.http_server import Response, serving
from tests.helpers.waiting import scaled, until

CAROL = {"user": "carol", "jobid": "3"}  # has been running since NOW - 5000
LAST_SAMPLE_MILLISECONDS = (NOW - 50) * 1000


def samples(metric, values, **labels):
    return [line(metric, value, NOW - 5000 + 30 * n, **labels) for n, value in enumerate(values, 1)]


SAMPLES = [
    *samples("cpu_seconds_total", range(120, 19801, 120), mode="user", **CAROL),
    *samples("memory_peak_bytes", [1 << 30] * 165, **CAROL),
    *samples("gpu_utilization_ratio", [0] * 165, **CAROL, gpu="0", uuid="GPU-c"),
    *samples("emissions_grams_total", [n / 10 for n in range(1, 166)], provider="owid", **CAROL),
    # Series of another user under her job id.
    *samples("cpu_seconds_total", [10**9] * 165, mode="user", jobid="3", user="mallory"),
]


def with_live_usage(services, url, seconds=60.0, stopwatch=time.monotonic):
    histories, bounded = TimeSeriesPool([Prometheus(Endpoint(url))]), BoundedWait(seconds=seconds)
    live_usage = LiveUsage(services.reader, histories, UsagePolicy(), 30.0, bounded, stopwatch)
    return services._replace(histories=histories, live=live_usage)


@pytest.fixture(scope="module", params=SERVERS)
def store(request):
    with request.param(SAMPLES) as url:
        yield url


def get(services, path, **params):
    headers = {"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer


def job_of_carol(answer):
    (job,) = [row for row in answer.json() if row["jobid"] == "3"]
    return job


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/jobs/3"])
def test_jobs_api_has_current_usage_of_running_job(services, store, path):
    job = job_of_carol(get(with_live_usage(services, store), path))
    assert job["usage_user_cpu_seconds"] == 19800
    assert job["usage_memory_peak_bytes"] == 1 << 30
    assert job["usage_gpu_utilization_ratio"] == 0
    assert job["usage_until_time"] == LAST_SAMPLE_MILLISECONDS
    assert job["cpu_efficiency"] == pytest.approx(19800 / job["cpu_available_seconds"])


@pytest.mark.parametrize("end", [NOW + 3, NOW - 10], ids=["at once", "late"])
def test_cached_usage_is_discarded_when_job_has_ended(services, store, end):
    """The cached usage is that of a running job, and may have been measured after its end."""
    queries = []

    def get_job(now):
        return job_of_carol(get(live_services._replace(clock=lambda: now), "/api/v1/jobs/3"))

    with query_relay(store, on_query=queries.append) as relay_url:
        live_services = with_live_usage(services, relay_url)
        get_job(NOW)
        get_job(NOW + 2)
        assert len(queries) == 1
        ended = {"state": "COMPLETED", "end_time": end, "usage_due_time": end + 390}
        with services.writer.begin() as db:
            db.execute(sa.update(schema.job).where(schema.job.c.jobid == "3").values(ended))
        assert get_job(NOW + 4)["usage_until_time"] == end * 1000
        queries_after_end = len(queries)
        get_job(NOW + 5)
    assert len(queries) == queries_after_end > 1


def test_gpus_of_running_job_are_current(services, store):
    (gpu,) = get(with_live_usage(services, store), "/api/v1/jobs/3/gpus").json()
    assert (gpu["node"], gpu["uuid"], gpu["utilization_ratio"]) == ("n001", "GPU-c", 0)


def test_emissions_of_running_job_are_current(services, store):
    (row,) = get(with_live_usage(services, store), "/api/v1/jobs/3/emissions").json()
    assert (row["provider"], row["grams"]) == ("owid", 16.5)


@pytest.mark.parametrize("part", ["gpus", "emissions"])
def test_recorded_parts_are_returned_when_store_is_unreachable(services, part):
    with services.reader.connect() as db:
        job_id = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "3"))
    recorded = {
        "gpus": {"node": "n001", "uuid": "GPU-c", "gpu_instance": "", "utilization_ratio": 0.5},
        "emissions": {"provider": "owid", "grams": 7.0},
    }
    table = {"gpus": schema.job_gpu, "emissions": schema.job_emissions}[part]
    with services.writer.begin() as db:
        db.execute(sa.insert(table).values(job_id=job_id, **recorded[part]))
    (row,) = get(with_live_usage(services, "http://127.0.0.1:1"), f"/api/v1/jobs/3/{part}").json()
    assert row.items() >= recorded[part].items()


def test_job_list_sends_one_query(services, store):
    queries = []
    with query_relay(store, on_query=queries.append) as relay_url:
        job = job_of_carol(
            get(with_live_usage(services, relay_url), "/api/v1/jobs", state="RUNNING")
        )
    assert job["usage_until_time"] == LAST_SAMPLE_MILLISECONDS
    assert len(queries) == 1


def test_selected_fields_have_current_usage(services, store):
    answer = get(with_live_usage(services, store), "/api/v1/jobs", fields="jobid,cpu_used_seconds")
    assert job_of_carol(answer) == {"jobid": "3", "cpu_used_seconds": 19800}


def test_idle_gpus_use_current_utilization(services, store):
    with services.writer.begin() as db:
        carols_job = schema.job.c.jobid == "3"
        db.execute(sa.update(schema.job).where(carols_job).values(allocated_gpus=1))
    (idle,) = get(with_live_usage(services, store), "/api/v1/stats/idle-gpus").json()
    assert (idle["jobid"], idle["idle_gpus"], idle["gpu_utilization_ratio"]) == ("3", 1, 0)
    assert idle["measured_time"] == LAST_SAMPLE_MILLISECONDS
    assert idle["idle_gpu_seconds"] == 4950
    page = get(with_live_usage(services, store), "/clusters/c1").text
    assert "is known to use less than 25 % of its GPUs" not in page


def test_one_idle_gpu_of_two_is_current(services):
    with services.writer.begin() as db:
        carols_job = schema.job.c.jobid == "3"
        db.execute(sa.update(schema.job).where(carols_job).values(allocated_gpus=2))
    busy_gpu = samples("gpu_utilization_ratio", [0.8] * 165, **CAROL, gpu="1", uuid="GPU-d")
    with prometheus([*SAMPLES, *busy_gpu]) as url:
        live_services = with_live_usage(services, url)
        (idle,) = get(live_services, "/api/v1/stats/idle-gpus").json()
        page = get(live_services, "/jobs").text
    assert (idle["idle_gpus"], idle["gpu_utilization_ratio"]) == (1, pytest.approx(0.4))
    assert "Use of its GPUs: 0\N{NARROW NO-BREAK SPACE}%, 80\N{NARROW NO-BREAK SPACE}%" in page


def test_pages_render_with_live_usage(services, store):
    live_services = with_live_usage(services, store)
    for path in ("/jobs", "/compare?job=3", "/clusters/c1"):
        get(live_services, path)


def test_slow_answer_is_cached_longer(services, store):
    with services.reader.connect() as db:
        (row,) = running(db, EVERYTHING)
    queries, clock_seconds = [], 0

    def count_query(query):
        nonlocal clock_seconds
        queries.append(query)
        clock_seconds += 40

    with query_relay(store, on_query=count_query) as url:
        live_usage = with_live_usage(services, url, stopwatch=lambda: clock_seconds).live
        for seconds_later, expected_queries in ((0, 1), (40, 1), (54, 1), (56, 2)):
            (usage,) = live_usage.rows([row], NOW + seconds_later)
            assert usage["usage_until_time"] == NOW - 50
            assert len(queries) == expected_queries


def test_live_usage_needs_no_connection_of_requests(services, store):
    live_usage = with_live_usage(services, store).live
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(services.reader.connect())
            for _ in range(services.threads.connections())
        ]
        (usage,) = live_usage.rows(running(connections[0], EVERYTHING), NOW)
    assert usage["usage_until_time"] == NOW - 50


@contextlib.contextmanager
def hanging_store(release):
    """A store that answers nothing until it is released; gives its URL and the queries it got."""
    queries = []

    def answer(request):
        queries.append(request.form["query"][0])
        release.wait(scaled(20))
        return Response(b'{"status":"success","data":{"resultType":"vector","result":[]}}')

    with serving(answer) as server:
        try:
            yield server.url, queries
        finally:
            release.set()


def test_hanging_store_does_not_delay_stored_usage(services):
    with hanging_store(threading.Event()) as (url, queries):
        slow_services = with_live_usage(services, url, seconds=1.0)
        started = time.monotonic()
        job = job_of_carol(get(slow_services, "/api/v1/jobs"))
        get(slow_services, "/api/v1/jobs")  # the first query is still waiting for its answer
        assert time.monotonic() - started < scaled(10)
        assert job["usage_until_time"] != NOW * 1000
        assert len(queries) == 1
        slow_services.live.stop()


def test_jobs_requested_during_a_query_are_in_the_next_query(services):
    with services.writer.begin() as db:
        (job,) = db.execute(sa.select(schema.job).where(schema.job.c.jobid == "3")).mappings()
        copies = [{**job, "id": 1000 + n, "jobid": f"{1000 + n}"} for n in range(2)]
        db.execute(sa.insert(schema.job), copies)
        first, second, third = sorted(running(db, EVERYTHING), key=lambda row: row["id"])
    release = threading.Event()
    with hanging_store(release) as (url, queries):
        live_usage = with_live_usage(services, url, seconds=0.01).live
        live_usage.rows([first], NOW)
        until(lambda: queries, "the first query")
        live_usage.rows([second], NOW)
        live_usage.rows([third, first], NOW)
        release.set()
        until(lambda: len(queries) > 1, "the second query")
        live_usage.stop()
    ids = f"{second['jobid']}|{third['jobid']}"
    assert ids in queries[1], queries


def test_number_of_jobs_per_query_is_limited(services):
    with services.reader.connect() as db:
        (row,) = running(db, EVERYTHING)
    release = threading.Event()
    with hanging_store(release) as (url, queries):
        live_usage = with_live_usage(services, url, seconds=0.01).live
        live_usage.rows([row], NOW)
        until(lambda: queries, "the first query")
        rows = [{**row, "id": 10_000 + n, "jobid": str(10_000 + n)} for n in range(3000)]
        with services.writer.begin() as db:
            (job,) = db.execute(
                sa.select(schema.job).where(schema.job.c.id == row["id"])
            ).mappings()
            copies = [{**job, "id": each["id"], "jobid": each["jobid"]} for each in rows]
            db.execute(sa.insert(schema.job), copies)
        assert len(live_usage.rows(rows, NOW)) == 3000
        release.set()
        until(lambda: any("|11999" in query for query in queries), "the last job that fits", 60)
        live_usage.rows(rows[2999:], NOW)
        until(lambda: "12999" in queries[-1], "the next query", 60)
        live_usage.stop()
    assert not any("12000" in query for query in queries)


def test_figures_of_many_rows_equal_those_of_single_rows(services):
    with services.reader.connect() as db:
        rows = running(db, EVERYTHING)
    usage = {"samples": 9, "coverage": 1.0, "until_time": NOW, "user_cpu_seconds": 77.0}
    usage |= {"system_cpu_seconds": 1.0, "nodes": 1, "doubt": ""}
    replaced = replace_usages(rows, {row["id"]: usage for row in rows})
    for row, of_many in zip(rows, replaced, strict=True):
        of_one = replace_usage(row, usage)
        assert of_many["cpu_efficiency"] == of_one["cpu_efficiency"]
        assert {**of_one, "time_efficiency": None} == {**of_many, "time_efficiency": None}
