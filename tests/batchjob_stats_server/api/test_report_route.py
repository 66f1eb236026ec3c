"""Job reports over the API, from the database alone and with real stores."""

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.turns import TimeSeriesPool
from tests.batchjob_stats_db.tsdb import SERVERS, line
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

BOB = {"user": "bob", "jobid": "2"}
CAROL = {"user": "carol", "jobid": "3"}
N2 = {"instance": "n002:10910"}


def samples(metric, values, begin, step=30, **labels):
    return [line(metric, value, begin + step * n, **labels) for n, value in enumerate(values, 1)]


SAMPLES = [
    # Carol's job has run since NOW - 5000, on two nodes of which one is idle, with an idle GPU.
    *samples("cpu_seconds_total", range(120, 19801, 120), NOW - 5000, mode="user", **CAROL),
    *samples("cpu_seconds_total", range(1, 166), NOW - 5000, mode="user", **CAROL, **N2),
    *samples("memory_peak_bytes", [1 << 30] * 165, NOW - 5000, **CAROL),
    *samples("gpu_utilization_ratio", [0] * 165, NOW - 5000, **CAROL, gpu="0", uuid="GPU-c"),
    *samples("gpu_memory_bytes", [1 << 20] * 165, NOW - 5000, **CAROL, gpu="0", uuid="GPU-c"),
    # Series of another user under her job id.
    *samples(
        "cpu_seconds_total", [10**9] * 165, NOW - 5000, mode="user", jobid="3", user="mallory"
    ),
    # Bob's job ended, and was not measured yet: one of its four CPUs worked.
    *samples("cpu_seconds_total", range(30, 2581, 30), NOW - 6000, mode="user", **BOB),
    line("end_time_seconds", NOW - 3400, NOW - 3390, **BOB),
    line("cpu_seconds_total", 2600, NOW - 3390, mode="user", **BOB),
]


@pytest.fixture(scope="module", params=SERVERS)
def store(request):
    with request.param(SAMPLES) as url:
        yield url


def get_report(services, path, user="vera", status=200, **params):
    headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    answer = client.get(f"/api/v1/jobs/{path}/report", params=params)
    assert answer.status_code == status, answer.text
    return answer


@pytest.fixture
def services_with_store(services, store):
    return services._replace(stores=TimeSeriesPool([Prometheus(Endpoint(store))]))


def advice_by_rule(answer):
    return {advice["rule"]: advice for advice in answer.json()["advice"]}


def test_report_without_time_series_store(services):
    report = get_report(services, "2").json()
    assert report["basis"]["source"] == ""
    assert [each["rule"] for each in report["advice"]] == ["not-measured"]


def test_report_with_unreachable_store_is_made_from_the_database(services):
    unreachable = TimeSeriesPool([Prometheus(Endpoint("http://127.0.0.1:1", timeout_seconds=1))])
    report = get_report(services._replace(stores=unreachable), "3").json()
    assert report["job"]["user"] == "carol"
    assert report["nodes"] == []


@pytest.mark.parametrize(
    ("options", "media_type", "beginning"),
    [
        ({}, "application/json", "{"),
        ({"format": "text"}, "text/plain; charset=utf-8", "Job 1 on c1"),
        ({"format": "markdown"}, "text/markdown; charset=utf-8", "# Job 1"),
        ({"format": "html"}, "text/html; charset=utf-8", "<!doctype html>"),
    ],
)
def test_report_formats(services, options, media_type, beginning):
    answer = get_report(services, "1", **options)
    assert answer.headers["content-type"] == media_type
    assert answer.text.startswith(beginning)
    assert answer.headers["cache-control"] == "private, no-store"


def test_html_report_has_strict_content_security_policy(services):
    answer = get_report(services, "2", format="html")
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'", "form-action 'none'"} <= set(policy)


def test_report_of_chosen_run(services, proxy_client):
    runs = proxy_client("vera").get("/api/v1/jobs/1?cluster=c1").json()
    for run in runs:
        report = get_report(services, "1", cluster="c1", run=run["id"]).json()
        assert report["job"]["start_time"] == run["start_time"]
    get_report(services, "1", run=10**6, status=404)


def test_similar_jobs_are_those_visible_to_the_user(services):
    # Of alice's jobs named "train" on c1 that ended before: the first run of 1.
    assert get_report(services, "5", "alice").json()["similar"]["jobs"] == 1
    assert get_report(services, "3", "dave").json()["similar"]["jobs"] == 0
    assert "job 2 does not exist" in get_report(services, "2", "alice", 404).json()["detail"]


def test_invalid_parameters_are_rejected(services):
    assert "format" in get_report(services, "1", status=422, format="pdf").json()["detail"]
    assert "run" in get_report(services, "1", status=422, run="first").json()["detail"]


def test_report_of_pending_and_never_started_job(services):
    for jobid in ("8", "9"):
        report = get_report(services, jobid).json()
        assert report["efficiency"][0]["missing"] == "the job has not started"
        get_report(services, jobid, format="text")
