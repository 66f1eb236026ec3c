"""Health, limits and what happens when the database is gone."""

import os

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server import app


def test_health_is_open_to_all(client):
    assert client.get("/-/healthy").text == "ok\n"
    assert client.get("/-/ready").status_code == 200


def test_own_metrics_count_by_route(client, certified):
    client.get("/api/v1/me")
    client.get("/nothing/here")
    page = certified("vera", "viewer").get("/metrics").text
    assert 'requests_total{method="GET",route="/api/v1/me",status="401"} 1.0' in page
    assert 'requests_total{method="GET",route="none",status="404"} 1.0' in page
    assert 'batchjob_stats_server_refused_total{reason="none"} 1.0' in page


def test_own_metrics_tell_what_is_in_use(certified):
    page = certified("vera", "viewer").get("/metrics").text
    for name in (
        "busy_threads", "threads", "waiting_requests", "database_connections", "info",
        "rate_limited_total", "tsdb_questions", "tsdb_request_duration_seconds",
    ):  # fmt: skip
        assert f"# HELP batchjob_stats_server_{name} " in page
    assert "process_resident_memory_bytes" in page


def test_own_metrics_are_for_some_peers_and_viewers(client, services, token):
    """Nothing in them is about a person, but not everybody's to read either."""
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=token("alice")).status_code == 403
    assert client.get("/metrics", headers=token("vera", TokenRole.VIEWER)).status_code == 200
    limited = token("vera", TokenRole.VIEWER, cluster="c1")
    assert client.get("/metrics", headers=limited).status_code == 403
    for host, status in (("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("", 401)):
        at = TestClient(app.make(services), client=(host, 1))
        assert at.get("/metrics").status_code == status


def test_a_path_nobody_knows(client):
    answer = client.get("/api/v1/../../etc/passwd")
    assert answer.status_code == 404
    assert answer.json()["status"] == 404
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_is_too_large_is_refused(client):
    assert client.post("/api/v1/me", content=b"x" * 70_000).status_code == 413
    assert client.get("/api/v1/me?x=" + "x" * 20_000).status_code == 414


def test_a_database_that_is_gone_is_named(path, services, token):
    headers = token("alice")
    services.reader.dispose()
    os.rename(path, f"{path}.away")
    asker = TestClient(app.make(services), raise_server_exceptions=False)
    answer = asker.get("/api/v1/me", headers=headers)
    assert answer.status_code == 503
    assert "database" in answer.json()["detail"]
    ready = asker.get("/-/ready")
    assert (ready.status_code, ready.text) == (503, "the database is not ready\n")
    assert asker.get("/-/healthy").status_code == 200


def test_an_error_of_ours_is_a_problem_document(services, token):
    made = app.make(services)

    @made.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret detail")

    asker = TestClient(made, raise_server_exceptions=False)
    answer = asker.get("/broken")
    assert (answer.status_code, answer.json()["status"]) == (500, 500)
    assert "secret detail" not in answer.text


def test_nothing_is_reported_to_opentelemetry(client, monkeypatch):
    """FastAPI does so by itself if a library or the environment has configured OpenTelemetry."""
    trace = pytest.importorskip("opentelemetry.trace")
    asked = []

    class Provider(trace.TracerProvider):
        def get_tracer(self, *arguments, **named):
            asked.append(arguments)
            return trace.NoOpTracer()

    monkeypatch.setattr(trace, "get_tracer_provider", Provider)
    assert client.get("/-/healthy").status_code == 200
    assert asked == []
