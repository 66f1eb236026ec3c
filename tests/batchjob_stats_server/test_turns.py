"""Which request starts next, and how many of one caller are in progress."""

import asyncio
import contextlib
import math
import socket
import threading
import time

import anyio
import pytest

from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from batchjob_stats_server.turns import MAX_REQUESTS_PER_CALLER, TRUSTED, Turns
from tests.batchjob_stats_server.serving import serving
from tests.helpers.waiting import scaled


def run(scenario):
    async def run_scenario():
        scenario()

    asyncio.run(run_scenario())


def acquire(turns, caller, many):
    return [turns.acquire(caller) for _ in range(many)]


def started(requests):
    return [number for number, turn in enumerate(requests) if turn.done()]


def test_requests_of_one_caller_are_limited():
    def scenario():
        turns = Turns(4, 2)
        alice, bob = acquire(turns, "alice", 20), acquire(turns, "bob", 1)
        assert (started(alice), started(bob)) == ([0, 1], [0])
        turns.end("bob", bob[0])
        assert started(alice) == [0, 1]
        turns.end("alice", alice[0])
        assert started(alice) == [0, 1, 2]

    run(scenario)


def test_callers_take_turns():
    def scenario():
        turns = Turns(1, 1)
        requests = [
            (name, turns.acquire(name)) for name in ("alice",) * 5 + ("bob",) * 2 + ("eve",)
        ]
        order = []
        while requests:
            (begun,) = [each for each in requests if each[1].done()]
            order.append(begun[0])
            requests.remove(begun)
            turns.end(*begun)
        assert order == ["alice", "alice", "bob", "eve", "alice", "bob", "alice", "alice"]
        assert turns.running + turns.waiting == 0

    run(scenario)


def test_fair_share_shrinks_with_several_callers():
    def scenario():
        turns = Turns(math.inf, 8, fair_share=2)
        requests = {name: acquire(turns, name, 4) for name in "abcdef"}
        assert {name: len(started(each)) for name, each in requests.items()} == {
            "a": 4, "b": 4, **dict.fromkeys("cdef", 2)
        }  # fmt: skip

    run(scenario)


def test_trusted_caller_is_not_limited():
    run(lambda: len(started(acquire(Turns(math.inf, 1), TRUSTED, 100))) == 100)


def test_request_that_ends_while_it_waits_takes_no_place():
    def scenario():
        turns = Turns(1, 1)
        first, second, third = acquire(turns, "crowd", 3)
        turns.end("crowd", second)
        turns.end("crowd", first)
        assert not second.done()
        assert third.done()

    run(scenario)


def test_cancelled_request_leaves_the_queue():
    async def scenario():
        turns = Turns(2, 1)
        async with turns.take("alice"):
            with anyio.move_on_after(0.01):
                async with turns.take("alice"):
                    raise AssertionError("it had no place")
            assert turns.running + turns.waiting == 1
        async with turns.take("alice"):
            assert turns.running == 1
        assert turns.running + turns.waiting == 0

    asyncio.run(scenario())


def test_request_cancelled_as_it_begins_gives_back_its_place():
    async def scenario():
        turns = Turns(1, 1)

        async def take():
            async with turns.take("bob"):
                await asyncio.sleep(scaled(60))

        async with turns.take("alice"):
            bob = asyncio.create_task(take())
            await asyncio.sleep(0)
        bob.cancel()
        await asyncio.wait([bob])
        assert turns.running + turns.waiting == 0

    asyncio.run(scenario())


def test_too_many_requests_are_refused():
    async def scenario():
        turns = Turns(1, 1, "the database")
        acquire(turns, "alice", MAX_REQUESTS_PER_CALLER)
        with pytest.raises(TooMany, match="at most 32 simultaneous requests"):
            await turns.run("alice", lambda: None)
        with pytest.raises(Unavailable, match="too many simultaneous requests to the database"):
            await turns.run("bob", lambda: None)

    asyncio.run(scenario())


def test_place_without_waiting():
    turns = Turns(3, 2)
    turns.take_now("alice")
    turns.take_now("alice")
    with pytest.raises(TooMany):
        turns.take_now("alice")
    turns.take_now("bob")
    with pytest.raises(Unavailable):
        turns.take_now("bob")
    turns.release("alice")
    turns.take_now("bob")


def test_work_runs_in_threads_of_which_one_caller_takes_not_all():
    async def scenario():
        turns, may_end, begun = Turns(3, 2), threading.Event(), []

        def hang():
            begun.append(threading.get_ident())
            may_end.wait(scaled(30))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(turns.run, "alice", hang)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(scaled(20)):
                assert await turns.run("bob", lambda: "done") == "done"
            assert len(set(begun)) == 2
            may_end.set()

    asyncio.run(scenario())


UPLOAD = b"POST /api/v1/tokens HTTP/1.1\r\nhost: testserver\r\ncontent-length: 100\r\n\r\n{"


def test_slow_uploads_do_not_block_other_requests_of_their_address(services):
    many = 2 * services.settings.web.threads
    with contextlib.ExitStack() as stack, serving(services) as port:

        def connect():
            return stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=scaled(5))
            )

        for _ in range(many):
            connect().sendall(UPLOAD)
        client = connect()
        begin = time.monotonic()
        client.sendall(b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 401")
        assert time.monotonic() - begin < scaled(5)
