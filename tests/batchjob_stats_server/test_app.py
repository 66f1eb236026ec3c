"""Health, own metrics, limits, and errors such as a missing database."""

import os

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server import app


def test_health_needs_no_authentication(client):
    assert client.get("/-/healthy").text == "ok\n"
    assert client.get("/-/ready").status_code == 200


def test_metrics_count_requests_by_route(client, certificate_client):
    client.get("/api/v1/me")
    client.get("/nothing/here")
    metrics = certificate_client("vera", "viewer").get("/metrics").text
    assert 'requests_total{method="GET",route="/api/v1/me",status="401"} 1.0' in metrics
    assert 'requests_total{method="GET",route="none",status="404"} 1.0' in metrics
    assert 'batchjob_stats_server_refused_total{reason="none"} 1.0' in metrics
    # A rate needs the value before the first request.
    for route in ("/api/v1/jobs", "/jobs/{jobid}", "/-/ready"):
        assert f'requests_total{{method="GET",route="{route}",status="503"}} 0.0' in metrics


def test_metrics_show_threads_connections_and_memory(certificate_client):
    metrics = certificate_client("vera", "viewer").get("/metrics").text
    for name in (
        "busy_threads", "threads", "waiting_requests", "database_connections", "info",
        "rate_limited_total", "tsdb_questions", "tsdb_request_duration_seconds",
    ):  # fmt: skip
        assert f"# HELP batchjob_stats_server_{name} " in metrics
    assert "process_resident_memory_bytes" in metrics


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text;version=1.0.0"])
def test_metrics_have_the_format_that_the_scraper_accepts(certificate_client, accept):
    answer = certificate_client("vera", "viewer").get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept.partition(";")[0])
    assert answer.text.endswith("# EOF\n") == ("openmetrics" in accept)
    assert "_created" not in answer.text
    assert "# UNIT" not in answer.text


def test_metrics_are_limited_to_local_peers_and_viewers(client, services, token_headers):
    """They say nothing about a person, but are not for everybody to read either."""
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=token_headers("alice")).status_code == 403
    assert (
        client.get("/metrics", headers=token_headers("vera", TokenRole.VIEWER)).status_code == 200
    )
    cluster_headers = token_headers("vera", TokenRole.VIEWER, cluster="c1")
    assert client.get("/metrics", headers=cluster_headers).status_code == 403
    for host, status in (("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("", 401)):
        client_at_host = TestClient(app.make(services), client=(host, 1))
        assert client_at_host.get("/metrics").status_code == status


def test_unknown_path_is_404(client):
    answer = client.get("/api/v1/../../etc/passwd")
    assert answer.status_code == 404
    assert answer.json()["status"] == 404
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_oversized_body_and_url_are_rejected(client):
    assert client.post("/api/v1/me", content=b"x" * 70_000).status_code == 413
    assert client.get("/api/v1/me?x=" + "x" * 20_000).status_code == 414


def test_missing_database_answers_503_and_is_not_ready(database_path, services, token_headers):
    headers = token_headers("alice")
    services.reader.dispose()
    os.rename(database_path, f"{database_path}.away")
    client = TestClient(app.make(services), raise_server_exceptions=False)
    answer = client.get("/api/v1/me", headers=headers)
    assert answer.status_code == 503
    assert "database" in answer.json()["detail"]
    ready = client.get("/-/ready")
    assert (ready.status_code, ready.text) == (503, "the database is not ready\n")
    assert client.get("/-/healthy").status_code == 200


def test_internal_error_is_problem_document_without_details(services, token_headers):
    application = app.make(services)

    @application.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret detail")

    client = TestClient(application, raise_server_exceptions=False)
    answer = client.get("/broken")
    assert (answer.status_code, answer.json()["status"]) == (500, 500)
    assert "secret detail" not in answer.text


def test_no_traces_are_sent_to_opentelemetry(client, monkeypatch):
    """FastAPI does so by itself if a library or the environment has configured OpenTelemetry."""
    trace = pytest.importorskip("opentelemetry.trace")
    tracer_requests = []

    class Provider(trace.TracerProvider):
        def get_tracer(self, *arguments, **options):
            tracer_requests.append(arguments)
            return trace.NoOpTracer()

    monkeypatch.setattr(trace, "get_tracer_provider", Provider)
    assert client.get("/-/healthy").status_code == 200
    assert tracer_requests == []
