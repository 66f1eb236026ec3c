"""Which request starts next when many of one address are waiting."""

import asyncio
import contextlib
import socket
import time

from batchjob_stats_server.http.turns import TRUSTED, RequestTurns
from tests.batchjob_stats_server.serving import serving
from tests.helpers.waiting import scaled


def started(turns):
    return [number for number, turn in enumerate(turns) if turn.done() and turn.result()]


def test_running_requests_of_one_peer_are_limited():
    async def scenario():
        requests = RequestTurns(4)
        crowd = [requests.acquire("crowd") for _ in range(100)]
        other = requests.acquire("other")
        assert (started(crowd), started([other])) == ([0, 1, 2, 3], [0])
        requests.release("other")
        requests.release("crowd")
        await asyncio.sleep(0)
        assert started(crowd) == [0, 1, 2, 3, 4]

    asyncio.run(scenario())


def test_limit_per_peer_shrinks_with_several_peers():
    async def scenario():
        requests = RequestTurns(8)
        turns = {peer: [requests.acquire(peer) for _ in range(4)] for peer in "abcdef"}
        for _ in range(3):
            await asyncio.sleep(0)
        assert {peer: len(started(each)) for peer, each in turns.items()} == {
            "a": 4, "b": 4, **dict.fromkeys("cdef", 2)
        }  # fmt: skip

    asyncio.run(scenario())


def test_few_requests_start_per_iteration_and_peers_take_turns():
    async def scenario():
        requests = RequestTurns(4)
        crowd = [requests.acquire(f"address {number // 4}") for number in range(400)]
        at_once = len(started(crowd))
        other = requests.acquire("other")
        passes = 0
        while not started([other]):
            assert len(started(crowd)) == at_once * (1 + passes)
            await asyncio.sleep(0)
            passes += 1
        assert passes <= 2 + 100 // at_once  # once round the crowd's addresses

    asyncio.run(scenario())


def test_withdrawn_request_takes_no_turn():
    async def scenario():
        requests = RequestTurns(1)
        first, second, third = (requests.acquire("a") for _ in range(3))
        requests.withdraw("a", second)
        requests.withdraw("a", first)  # has begun: its place is given back by release()
        assert second.result() is False
        requests.release("a")
        await asyncio.sleep(0)
        assert started([first, second, third]) == [0, 2]

    asyncio.run(scenario())


def test_trusted_peer_is_not_limited():
    async def scenario():
        requests = RequestTurns(1)
        many = [requests.acquire(TRUSTED) for _ in range(100)]
        while len(started(many)) < 100:
            await asyncio.sleep(0)

    asyncio.run(scenario())


UPLOAD = b"POST /api/v1/tokens HTTP/1.1\r\nhost: testserver\r\ncontent-length: 100\r\n\r\n{"


def test_slow_uploads_do_not_block_other_requests_of_their_peer(services):
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
