"""Costly requests of one user leave threads to the requests of others."""

import threading

import anyio
import pytest
from fastapi.testclient import TestClient

from batchjob_stats_server import app
from batchjob_stats_server.api.answers import query_database
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.promql.fair_queue import MAX_REQUESTS_PER_USER, FairQueue
from batchjob_stats_server.threads import Threads
from tests.helpers.waiting import scaled

ALICE, BOB = Principal("alice", "user", "token"), Principal("bob", "user", "token")


def test_many_costly_requests_of_one_user_do_not_delay_others(services):
    alice_may_end = threading.Event()
    services = services._replace(threads=Threads(1, FairQueue(3, 2, service="the database")))

    async def send_requests():
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(
                    query_database, services, ALICE, lambda _: alice_may_end.wait(scaled(30))
                )
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(scaled(20)):
                assert await query_database(services, BOB, lambda _: "answer") == "answer"
            alice_may_end.set()

    anyio.run(send_requests)


PAGES = (
    "/jobs?name_contains=a", "/jobs?sort=-usage_energy_joules", "/usage", "/clusters",
    "/clusters/c1", "/clusters/c1/nodes/n001", "/clusters/c1/accounts/physics",
    "/search?q=nothing",
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_costly_pages_use_the_same_queue(services, token_headers, path):
    headers = token_headers("alice") | {"Accept": "text/html"}
    queued_users = []

    class RecordingQueue(FairQueue):
        async def run(self, who, work):
            queued_users.append(who)
            return await super().run(who, work)

    services = services._replace(threads=Threads(1, RecordingQueue(2, 1, service="the database")))
    with TestClient(app.make(services)) as client:
        assert client.get(path, headers=headers).status_code == 200
        assert queued_users == [("alice", ())]
        assert client.get("/", headers=headers).status_code == 200
        assert len(queued_users) == 1


def test_too_many_costly_requests_of_one_user_are_rejected(services):
    alice_may_end = threading.Event()
    services = services._replace(threads=Threads(1, FairQueue(2, 1, service="the database")))

    async def send_requests():
        async with anyio.create_task_group() as group:
            for _ in range(MAX_REQUESTS_PER_USER):
                group.start_soon(
                    query_database, services, ALICE, lambda _: alice_may_end.wait(scaled(30))
                )
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(Problem) as rejected:
                await query_database(services, ALICE, lambda _: None)
            alice_may_end.set()
        assert rejected.value.status == 429

    anyio.run(send_requests)
