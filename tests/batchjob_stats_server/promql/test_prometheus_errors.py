"""PromQL gate: invalid requests, and a time series database that fails."""

import time

import pytest
from fastapi.testclient import TestClient

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.timeseries.base import JobWindow, TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.promql.backend import PromqlBackend
from tests.batchjob_stats_server.promql.conftest import GATE
from tests.batchjob_stats_server.serving import serving
from tests.helpers.waiting import scaled


@pytest.mark.parametrize(
    ("what", "pairs", "status", "says"),
    [
        ("query", [], 400, "query: expected"),
        ("query", [("query", "up"), ("query", "up")], 400, "query: expected once"),
        ("query", [("query", "up"), ("time", "1"), ("time", "1")], 400, "time: expected once"),
        ("query", [("query", "up"), ("extra_label", "user=bob")], 400, "'extra_label'"),
        ("query", [("query", "up"), ("extra_filters[]", "{}")], 400, "'extra_filters[]'"),
        ("query", [("query", "up"), ("match[]", "up")], 400, "'match[]'"),
        ("query", [("query", "up"), ("start", "1")], 400, "'start'"),
        ("query", [("query", "up{")], 400, "not PromQL"),
        ("query", [("query", 'a{x="1" or y="2"}')], 400, "joined by `or`"),
        ("query", [("query", "a[101d]")], 422, "range"),
        ("query", [("query", "a" * 5000)], 422, "5000 characters"),
        ("query_range", [("query", "up"), ("start", "1"), ("end", "2")], 400, "step: expected"),
        (
            "query_range",
            [("query", "up"), ("start", "2"), ("end", "1"), ("step", "1")],
            400,
            "not before start",
        ),
        (
            "query_range",
            [("query", "up"), ("start", "1"), ("end", "999999999"), ("step", "1d")],
            422,
            "at most 400 days",
        ),
        (
            "query_range",
            [("query", "up"), ("start", "0"), ("end", "20000"), ("step", "1")],
            422,
            "20000 points",
        ),
        ("series", [], 400, "match[]: expected"),
        ("series", [("match[]", "sum(up)")], 400, "selector"),
        ("series", [("match[]", "up")] * 33, 422, "at most 32"),
        ("labels", [("match[]", 'a{x="1" or user="bob"}')], 400, "joined by `or`"),
        ("label/a%2Fb/values", [], 404, "Not Found"),
        ("label/a-b/values", [], 400, "'a-b'"),
        ("label/..%2f..%2fadmin/values", [], 404, "Not Found"),
    ],
)
def test_invalid_request_is_explained_and_not_forwarded(
    query_gate, database, what, pairs, status, says
):
    answer = query_gate(what, *pairs)
    assert answer.status_code == status
    document = answer.json()
    assert says in document["detail"]
    assert "\n" not in document["detail"]
    if status != 404:
        assert document["status"] == "error"
        assert document["error"] == document["detail"]
    assert not database.requests


@pytest.mark.parametrize(
    "body",
    [
        {"json": {"query": "up"}},
        {"files": {"query": ("q", b"up")}},
        {"content": b"query=\xff\xfe", "headers": {"content-type": "text/plain"}},
        {"content": b"query=\xff"},
        {"content": b"query=%ff"},
        {"content": b"&".join(b"a=%d" % i for i in range(200))},
    ],
)
def test_invalid_form_body_is_rejected(proxy_client, database, body):
    assert proxy_client("alice").post(f"{GATE}/query", **body).status_code == 400
    assert not database.requests


@pytest.mark.parametrize(
    "what",
    ["rules", "alerts", "targets", "query_exemplars", "federate", "read", "write", "status/config",
     "admin/tsdb/delete_series", "status/flags", "format_query", "export"],
)  # fmt: skip
def test_other_prometheus_routes_are_not_found(proxy_client, database, what):
    assert proxy_client("root").get(f"{GATE}/{what}").status_code == 404
    assert proxy_client("root").post(f"{GATE}/{what}").status_code == 404
    assert not database.requests


@pytest.mark.parametrize("what", ["query", "labels", "status/buildinfo", "metadata"])
def test_request_without_identity_is_rejected(client, database, what):
    assert client.get(f"{GATE}/{what}", params={"query": "1"}).status_code == 401
    assert not database.requests


def test_query_error_of_the_database_is_passed_on(query_gate, database):
    database.answer = (
        422,
        b'{"status":"error","errorType":"execution","error":"found duplicate series","data":{}}',
    )
    answer = query_gate("query", ("query", "up"))
    assert answer.status_code == 422
    assert answer.json()["errorType"] == "execution"
    assert answer.json()["error"] == "found duplicate series"
    assert "data" not in answer.json()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, b"secret words"), "answers 401"),
        ((302, b""), "answers 302"),
        ((500, b"goroutine 1"), "answers 500"),
        ((200, b"x" * 2000), "more than 1000 bytes"),
    ],
)
def test_unusable_database_response_gives_503(query_gate, database, answer, says):
    database.answer = answer
    response = query_gate("query", ("query", "up"))
    assert response.status_code == 503
    assert says in response.json()["detail"]
    assert response.headers["retry-after"] == "10"


def test_unreachable_database_gives_503(services, database, proxy_client):
    gone = services._replace(tsdb=PromqlBackend(Endpoint("http://127.0.0.1:9"), 1))
    with TestClient(
        app.make(gone), client=("192.0.2.10", 1), headers=proxy_client("alice").headers
    ) as at:
        response = at.get(f"{GATE}/query", params={"query": "up"})
        assert response.status_code == 503
        assert response.json()["detail"] == "the time series database does not answer"
        assert at.get("/api/v1/me").status_code == 200


def test_unconfigured_database_is_explained(services, proxy_client):
    unconfigured_client = TestClient(
        app.make(services._replace(tsdb=None)),
        client=("192.0.2.10", 1),
        headers=proxy_client("alice").headers,
    )
    assert "configured" in unconfigured_client.get(f"{GATE}/query?query=up").json()["detail"]


def test_slowly_sent_database_response_times_out(query_gate, services, database):
    """Each piece comes in time; all of them together never would."""
    database.answer = (200, b"x" * 900)
    database.pause_seconds = 0.1
    start = time.monotonic()
    response = query_gate("query", ("query", "up"), ("timeout", "1ms"))
    assert (response.status_code, time.monotonic() - start < scaled(20)) == (503, True)
    assert "took too long" in response.json()["detail"]


def test_database_requests_are_counted_by_result(query_gate, database, services):
    query_gate("query", ("query", "up"))
    database.answer = (422, b"{}")
    query_gate("label/user/values")
    database.answer = (500, b"")
    query_gate("query", ("query", "up"))
    count = services.metrics.registry.get_sample_value
    name = "batchjob_stats_server_tsdb_request_duration_seconds_count"
    assert [
        count(name, {"question": question, "result": result})
        for question, result in (
            ("query", "answered"), ("label", "rejected"), ("query", "failed"), ("label", "failed"),
        )
    ] == [1, 1, 1, None]  # fmt: skip


def test_poller_queries_are_rejected(services, token_headers, database, now):
    everything = token_headers("vera", TokenRole.VIEWER)["Authorization"].removeprefix("Bearer ")
    wanted = {Statistic.TOTAL: ["batchjob_job_cpu_seconds_total"]}
    span = JobWindow("c1", "1", now - 600, now)
    with serving(services) as port:
        gate = Endpoint(f"http://127.0.0.1:{port}/api/v1/prometheus", token=everything)
        with pytest.raises(TimeSeriesError, match="status 400: parameter 'nocache' is not known"):
            Prometheus(gate).measure(wanted, [span])
    assert database.requests == []
