"""The layer around the application: requests that take too long."""

import asyncio
import dataclasses

from fastapi.testclient import TestClient
from starlette.responses import PlainTextResponse

from batchjob_stats_server.http.middleware import RequestLayer
from tests.helpers.waiting import scaled


def test_answer_that_does_not_begin_in_time_is_a_problem(services, monkeypatch):
    monkeypatch.setattr("batchjob_stats_server.http.middleware.QUEUE_SECONDS", scaled(0.5))
    settings = services.settings._replace(
        web=dataclasses.replace(services.settings.web, query_timeout=0.0, threads=1),
        gate=dataclasses.replace(services.settings.gate, timeout=0.0),
    )

    async def application(scope, receive, send):
        if scope["path"] == "/slow":
            await asyncio.sleep(scaled(60))
        await PlainTextResponse("done")(scope, receive, send)

    layer = RequestLayer(application, services._replace(settings=settings), lambda _: None)
    client = TestClient(layer)
    for _ in range(2):
        answer = client.get("/slow")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert answer.json()["detail"] == "the server is too busy to answer in time"
        assert client.get("/fast").text == "done"
