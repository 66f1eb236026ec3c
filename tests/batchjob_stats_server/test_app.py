"""Health, limits and what happens when the database is gone."""

import os

from fastapi.testclient import TestClient

from batchjob_stats_server import app


def test_health_is_open_to_all(client):
    assert client.get("/-/healthy").text == "ok\n"
    assert client.get("/-/ready").status_code == 200


def test_own_metrics_count_by_route(client):
    client.get("/api/v1/me")
    client.get("/nothing/here")
    page = client.get("/metrics").text
    assert 'requests_total{method="GET",route="/api/v1/me",status="401"} 1.0' in page
    assert 'requests_total{method="GET",route="none",status="404"} 1.0' in page
    assert 'batchjob_stats_server_refused_total{reason="none"} 1.0' in page


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
    assert asker.get("/-/ready").status_code == 503
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
