"""Requests of one user, costly or not, leave threads to the requests of others."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_server import app
from batchjob_stats_server.api import jobs, samples
from batchjob_stats_server.api.answers import run_in_thread
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.promql.query_limits import TooMany
from batchjob_stats_server.turns import MAX_REQUESTS_PER_CALLER, Threads, Turns
from tests.batchjob_stats_server.api.recording import with_samples
from tests.helpers.waiting import scaled

ALICE, BOB = Principal("alice", "user", "token"), Principal("bob", "user", "token")


run_costly = partial(run_in_thread, costly=True)


def with_costly(queue):
    return Threads(Turns(1, 1), queue, Turns(1, 1))


def test_many_costly_requests_of_one_user_do_not_delay_others(services):
    alice_may_end = threading.Event()
    services = services._replace(threads=with_costly(Turns(3, 2)))
    alice, bob = (Caller(services, who, EVERYTHING) for who in (ALICE, BOB))

    async def send_requests():
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(run_costly, alice, lambda: alice_may_end.wait(scaled(30)))
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(scaled(20)):
                assert await run_costly(bob, lambda: "answer") == "answer"
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

    class RecordingQueue(Turns):
        async def run(self, who, work):
            queued_users.append(who)
            return await super().run(who, work)

    services = services._replace(threads=with_costly(RecordingQueue(2, 1)))
    with TestClient(app.make(services)) as client:
        assert client.get(path, headers=headers).status_code == 200
        assert queued_users == [("alice", ())]
        assert client.get("/mine", headers=headers).status_code == 200
        assert len(queued_users) == 1


def test_too_many_costly_requests_of_one_user_are_rejected(services):
    alice_may_end = threading.Event()
    services = services._replace(threads=with_costly(Turns(2, 1)))
    alice = Caller(services, ALICE, EVERYTHING)

    async def send_requests():
        async with anyio.create_task_group() as group:
            for _ in range(MAX_REQUESTS_PER_CALLER):
                group.start_soon(run_costly, alice, lambda: alice_may_end.wait(scaled(30)))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(TooMany):
                await run_costly(alice, lambda: None)
            alice_may_end.set()

    anyio.run(send_requests)


def hang_for(monkeypatch, module, name, argument):
    """Let a function wait if `argument` is among its arguments; returns when it waits, and go."""
    waiting, may_end, real = threading.Semaphore(0), threading.Event(), getattr(module, name)

    def waits(*arguments):
        if argument in map(str, arguments):
            waiting.release()
            may_end.wait(scaled(60))
        return real(*arguments)

    monkeypatch.setattr(module, name, waits)
    return waiting, may_end


def test_many_ordinary_requests_of_one_user_do_not_delay_others(
    services, token_headers, monkeypatch
):
    """Alice has more requests in progress than there are ordinary threads, and all hang."""
    waiting, may_end = hang_for(monkeypatch, jobs, "find_jobs", "slow")
    alice, bob = token_headers("alice"), token_headers("bob")
    with TestClient(app.make(services)) as client, ThreadPoolExecutor(8) as pool:
        try:
            slow = [pool.submit(client.get, "/api/v1/jobs/slow", headers=alice) for _ in range(7)]
            assert waiting.acquire(timeout=scaled(20))
            answer = pool.submit(client.get, "/api/v1/jobs/2", headers=bob).result(scaled(20))
            assert [each["jobid"] for each in answer.json()] == ["2"]
        finally:
            may_end.set()
        assert [each.result().status_code for each in slow] == [200] * 7


def test_files_that_hang_take_no_threads_of_other_work(
    services, token_headers, monkeypatch, tmp_path
):
    services = with_samples(services, tmp_path)
    waiting, may_end = hang_for(monkeypatch, samples, "files_of", str(tmp_path / "2"))
    headers = token_headers("bob")
    with TestClient(app.make(services)) as client, ThreadPoolExecutor(8) as pool:
        try:
            path = "/api/v1/jobs/2/samples"
            hanging = [pool.submit(client.get, path, headers=headers) for _ in range(7)]
            for _ in hanging:
                assert waiting.acquire(timeout=scaled(20))
            answer = pool.submit(client.get, "/api/v1/jobs/2", headers=headers).result(scaled(20))
            assert answer.status_code == 200
        finally:
            may_end.set()
