"""Costly requests of one user leave a thread to those of others."""

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

ALICE, BOB = Principal("alice", "user", "token"), Principal("bob", "user", "token")


def test_a_user_with_many_costly_requests_delays_nobody_else(services):
    alice_may_end = threading.Event()
    places = services._replace(threads=Threads(1, FairQueue(3, 2, service="the database")))

    async def ask():
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(query_database, places, ALICE, lambda _: alice_may_end.wait(30))
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(20):
                assert await query_database(places, BOB, lambda _: "answer") == "answer"
            alice_may_end.set()

    anyio.run(ask)


PAGES = (
    "/jobs?name_contains=a", "/jobs?sort=-usage_energy_joules", "/usage", "/clusters",
    "/clusters/c1", "/clusters/c1/nodes/n001", "/clusters/c1/accounts/physics",
    "/search?q=nothing",
)  # fmt: skip


@pytest.mark.parametrize("address", PAGES)
def test_costly_pages_wait_in_the_same_line(services, token, address):
    headers = token("alice") | {"Accept": "text/html"}
    seen = []

    class Queue(FairQueue):
        async def run(self, who, work):
            seen.append(who)
            return await super().run(who, work)

    places = services._replace(threads=Threads(1, Queue(2, 1, service="the database")))
    with TestClient(app.make(places)) as asker:
        assert asker.get(address, headers=headers).status_code == 200
        assert seen == [("alice", ())]
        assert asker.get("/", headers=headers).status_code == 200
        assert len(seen) == 1


def test_too_many_requests_of_one_user_are_refused(services):
    end = threading.Event()
    places = services._replace(threads=Threads(1, FairQueue(2, 1, service="the database")))

    async def ask():
        async with anyio.create_task_group() as group:
            for _ in range(MAX_REQUESTS_PER_USER):
                group.start_soon(query_database, places, ALICE, lambda _: end.wait(30))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(Problem) as refused:
                await query_database(places, ALICE, lambda _: None)
            end.set()
        assert refused.value.status == 429

    anyio.run(ask)
