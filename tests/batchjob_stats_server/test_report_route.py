"""Reports over the API: with the database alone, and with real stores beside it."""

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.promql.histories import TimeSeriesPool
from tests.batchjob_stats_db.tsdb import SERVERS, line
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

BOB = {"user": "bob", "jobid": "2"}
CAROL = {"user": "carol", "jobid": "3"}
N2 = {"instance": "n002:10910"}


def course(metric, values, begin, step=30, **labels):
    return [line(metric, value, begin + step * n, **labels) for n, value in enumerate(values, 1)]


SAMPLES = [
    # Carol's job runs since NOW - 5000, on two nodes of which one does nothing, with an idle GPU.
    *course("cpu_seconds_total", range(120, 19801, 120), NOW - 5000, mode="user", **CAROL),
    *course("cpu_seconds_total", range(1, 166), NOW - 5000, mode="user", **CAROL, **N2),
    *course("memory_peak_bytes", [1 << 30] * 165, NOW - 5000, **CAROL),
    *course("gpu_utilization_ratio", [0] * 165, NOW - 5000, **CAROL, gpu="0", uuid="GPU-c"),
    *course("gpu_memory_bytes", [1 << 20] * 165, NOW - 5000, **CAROL, gpu="0", uuid="GPU-c"),
    # Somebody else's numbers under her id.
    *course("cpu_seconds_total", [10**9] * 165, NOW - 5000, mode="user", jobid="3", user="mallory"),
    # Bob's job ended, and was not measured yet: one of its four CPUs worked.
    *course("cpu_seconds_total", range(30, 2581, 30), NOW - 6000, mode="user", **BOB),
    *(line("end_time_seconds", NOW - 3400, NOW - 3390, **BOB) for _ in "x"),
    *(line("cpu_seconds_total", 2600, NOW - 3390, mode="user", **BOB) for _ in "x"),
]


@pytest.fixture(scope="module", params=SERVERS)
def store(request):
    with request.param(SAMPLES) as url:
        yield url


def ask(services, path, user="vera", status=200, accept="*/*", **params):
    headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET, "Accept": accept}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    answer = client.get(f"/api/v1/jobs/{path}/report", params=params)
    assert answer.status_code == status, answer.text
    return answer


@pytest.fixture
def measured(services, store):
    return services._replace(histories=TimeSeriesPool([Prometheus(Endpoint(store))]))


def rules(answer):
    return {each["rule"]: each for each in answer.json()["advice"]}


def test_a_running_job_is_measured_when_it_is_asked_for(measured):
    found = ask(measured, "3").json()
    assert found["interim"]
    assert found["basis"]["samples"] == 330
    # 4 CPUs on each node's record: the job has 4, and on n001 4 were in use.
    (cpu,) = (each for each in found["efficiency"] if each["what"] == "cpu")
    assert cpu["used"] == pytest.approx(19_800 + 165)
    assert {node["node"]: node["cpu_seconds"] for node in found["nodes"]} == {}  # it has one node
    assert [(gpu["node"], gpu["utilization_ratio"]) for gpu in found["gpus"]] == [("n001", 0)]


def test_an_ended_job_that_was_not_measured_yet(measured):
    found = ask(measured, "2")
    (cpu,) = (each for each in found.json()["efficiency"] if each["what"] == "cpu")
    assert cpu["ratio"] == pytest.approx(2600 / (4 * 3600), abs=0.01)
    assert "single-threaded" not in rules(found)  # more samples may come in


def test_the_database_alone_will_do(services):
    found = ask(services, "2").json()
    assert found["basis"]["source"] == ""
    assert [each["rule"] for each in found["advice"]] == ["not-measured"]


def test_a_store_that_is_gone_takes_nothing_else_along(services, caplog):
    gone = TimeSeriesPool([Prometheus(Endpoint("http://127.0.0.1:1", timeout_seconds=1))])
    found = ask(services._replace(histories=gone), "3").json()
    assert found["job"]["user"] == "carol"
    assert "has no measurements" in caplog.text


@pytest.mark.parametrize(
    ("asked", "media_type", "beginning"),
    [
        ({}, "application/json", "{"),
        ({"format": "text"}, "text/plain; charset=utf-8", "Job 1 on c1"),
        ({"format": "markdown", "accept": "text/html"}, "text/markdown; charset=utf-8", "# Job 1"),
        ({"accept": "text/html"}, "text/html; charset=utf-8", "<!doctype html>"),
    ],
)
def test_forms(services, asked, media_type, beginning):
    answer = ask(services, "1", **asked)
    assert answer.headers["content-type"] == media_type
    assert answer.text.startswith(beginning)
    assert answer.headers["cache-control"] == "private, no-store"
    assert "Accept" in answer.headers["vary"].split(", ")


def test_a_page_may_run_nothing(services):
    answer = ask(services, "2", format="html")
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'", "form-action 'none'"} <= set(policy)


def test_which_run(services, proxied):
    runs = proxied("vera").get("/api/v1/jobs/1?cluster=c1").json()
    for run in runs:
        found = ask(services, "1", cluster="c1", run=run["id"]).json()
        assert found["job"]["start_time"] == run["start_time"]
    ask(services, "1", run=10**6, status=404)


def test_nobody_else_s_jobs_are_compared_with(services):
    # Of alice's jobs named "train" on c1 that ended before: the first run of 1.
    assert ask(services, "5", "alice").json()["similar"]["jobs"] == 1
    assert ask(services, "3", "dave").json()["similar"]["jobs"] == 0
    assert "no job 2" in ask(services, "2", "alice", 404).json()["detail"]


def test_wrong_questions(services):
    assert "format" in ask(services, "1", status=422, format="pdf").json()["detail"]
    assert "run" in ask(services, "1", status=422, run="first").json()["detail"]


def test_pending_jobs_and_jobs_that_never_started(services):
    for jobid in ("8", "9"):
        found = ask(services, jobid).json()
        assert found["efficiency"][0]["missing"] == "the job has not started"
        ask(services, jobid, format="text")
