"""Order and limits of requests to the time series database."""

import threading

import anyio
import pytest

from batchjob_stats_server.promql.fair_queue import MAX_REQUESTS_PER_USER, FairQueue
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from tests.helpers.waiting import scaled


class Database:
    """Requests that end on demand; records whose they were."""

    def __init__(self):
        self.begun = []
        self.free = threading.Semaphore(0)

    def work(self, who):
        def ask():
            self.begun.append(who)
            assert self.free.acquire(timeout=scaled(10))

        return ask

    def end(self, questions):
        self.free.release(questions)


def run(scenario, concurrent=4, each=2):
    turns, database = FairQueue(concurrent, each), Database()

    async def run_scenario():
        async with anyio.create_task_group() as group:

            async def ask(who, times):
                for _ in range(times):
                    group.start_soon(turns.run, who, database.work(who))
                    await anyio.wait_all_tasks_blocked()
                while len(database.begun) < turns.count_running():
                    await anyio.sleep(0.001)

            await scenario(turns, database, ask)
            database.end(1000)
        assert (turns.count(), turns.count_running(), turns.users) == (0, 0, {})

    anyio.run(run_scenario)


def test_one_user_cannot_take_all_places():
    async def scenario(turns, database, ask):
        await ask("alice", 20)
        assert database.begun == ["alice"] * 2
        await ask("bob", 1)
        assert database.begun == ["alice"] * 2 + ["bob"]

    run(scenario)


def test_waiting_users_are_served_in_turn():
    async def scenario(turns, database, ask):
        await ask("alice", 20)
        await ask("bob", 3)
        await ask("carol", 3)
        database.end(26)
        while len(database.begun) < 26:
            await anyio.sleep(0.001)
        # A later user waits for a place, not for all queued requests of the others.
        assert {database.begun.index(who) for who in ("alice", "bob", "carol")} == {0, 1, 2}

    run(scenario, concurrent=1, each=1)


def test_requests_of_one_user_are_limited():
    async def scenario(turns, database, ask):
        await ask("alice", MAX_REQUESTS_PER_USER)
        with pytest.raises(TooMany, match="simultaneous requests"):
            await turns.run("alice", lambda: None)
        await ask("bob", 1)

    run(scenario)


def test_requests_of_all_users_are_limited():
    async def scenario(turns, database, ask):
        for number in range(32):
            await ask(f"user{number}", 1)
        with pytest.raises(Unavailable, match="simultaneous requests"):
            await turns.run("alice", lambda: None)

    run(scenario, concurrent=1)


def test_cancelled_request_leaves_the_queue():
    async def scenario(turns, database, ask):
        await ask("alice", 2)
        with anyio.move_on_after(0.01):
            await turns.run("alice", lambda: None)
        assert turns.count() == 2

    run(scenario)


def run_as_user(turns, database, who):
    """A request of somebody who is identified first."""
    return turns.run_as(lambda: who, str, lambda asker: database.work(asker)())


async def wait_until(condition):
    with anyio.fail_after(scaled(10)):
        while not condition():
            await anyio.sleep(0.001)


def test_identification_and_work_use_the_same_thread():
    async def scenario(turns, database, ask):
        threads = await turns.run_as(
            threading.get_ident, str, lambda asker: (asker, threading.get_ident())
        )
        assert len(set(threads)) == 1

    run(scenario)


def test_user_identified_in_the_queue_cannot_take_all_places():
    async def scenario(turns, database, ask):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(run_as_user, turns, database, "alice")
            await wait_until(lambda: turns.count() == 20 and turns.count_running() == 2)
            assert database.begun == ["alice"] * 2
            group.start_soon(run_as_user, turns, database, "bob")
            await wait_until(lambda: "bob" in database.begun)
            assert database.begun == ["alice"] * 2 + ["bob"]
            for number in range(1, 10):
                database.end(1)
                await wait_until(lambda number=number: len(database.begun) >= 3 + number - 1)
                assert turns.count_running() <= 3
            database.end(1000)
        assert database.begun.count("alice") == 20

    run(scenario)


def test_identification_error_is_raised_while_all_places_are_taken():
    def fail_identification():
        raise LookupError("nobody")

    async def scenario(turns, database, ask):
        for taken in range(2):
            with pytest.raises(LookupError):
                await turns.run_as(fail_identification, str, lambda _: None)
            await ask(f"user{taken}", 1)

    run(scenario, concurrent=1)


def test_cancelled_request_leaves_the_queue_after_identification():
    async def scenario(turns, database, ask):
        await ask("alice", 2)
        with anyio.move_on_after(0.05):
            await run_as_user(turns, database, "alice")
        assert turns.count() == 2
        database.end(2)
        await wait_until(lambda: turns.count() == 0)
        await turns.run_as(lambda: "alice", str, lambda _: None)

    run(scenario)
