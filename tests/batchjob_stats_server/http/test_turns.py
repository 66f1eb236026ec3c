"""Which request begins next, where a crowd at one address has asked first."""

import asyncio
import contextlib
import socket
import time

from batchjob_stats_server.http.turns import TRUSTED, RequestTurns
from tests.batchjob_stats_server.serving import serving


def begun(turns):
    return [number for number, turn in enumerate(turns) if turn.done() and turn.result()]


def test_few_of_one_peer_are_worked_on_and_another_need_not_wait():
    async def main():
        requests = RequestTurns(4)
        crowd = [requests.acquire("crowd") for _ in range(100)]
        other = requests.acquire("other")
        assert (begun(crowd), begun([other])) == ([0, 1, 2, 3], [0])
        requests.release("other")
        requests.release("crowd")
        await asyncio.sleep(0)
        assert begun(crowd) == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_several_peers_have_less_each():
    async def main():
        requests = RequestTurns(8)
        turns = {peer: [requests.acquire(peer) for _ in range(4)] for peer in "abcdef"}
        for _ in range(3):
            await asyncio.sleep(0)
        assert {peer: len(begun(each)) for peer, each in turns.items()} == {
            "a": 4, "b": 4, **dict.fromkeys("cdef", 2)
        }  # fmt: skip

    asyncio.run(main())


def test_few_begin_in_a_pass_and_each_peer_has_its_turn():
    async def main():
        requests = RequestTurns(4)
        crowd = [requests.acquire(f"address {number // 4}") for number in range(400)]
        at_once = len(begun(crowd))
        other = requests.acquire("other")
        passes = 0
        while not begun([other]):
            assert len(begun(crowd)) == at_once * (1 + passes)
            await asyncio.sleep(0)
            passes += 1
        assert passes <= 2 + 100 // at_once  # once round the crowd's addresses

    asyncio.run(main())


def test_who_has_left_takes_no_turn():
    async def main():
        requests = RequestTurns(1)
        first, second, third = (requests.acquire("a") for _ in range(3))
        requests.withdraw("a", second)
        requests.withdraw("a", first)  # has begun: its place is given back by release()
        assert second.result() is False
        requests.release("a")
        await asyncio.sleep(0)
        assert begun([first, second, third]) == [0, 2]

    asyncio.run(main())


def test_a_trusted_peer_brings_the_requests_of_many():
    async def main():
        requests = RequestTurns(1)
        many = [requests.acquire(TRUSTED) for _ in range(100)]
        while len(begun(many)) < 100:
            await asyncio.sleep(0)

    asyncio.run(main())


UPLOAD = b"POST /api/v1/tokens HTTP/1.1\r\nhost: testserver\r\ncontent-length: 100\r\n\r\n{"


def test_slow_uploads_take_no_turns_of_their_neighbours(services):
    many = 2 * services.settings.web.threads
    with contextlib.ExitStack() as stack, serving(services) as port:

        def connect():
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))

        for _ in range(many):
            connect().sendall(UPLOAD)
        client = connect()
        begin = time.monotonic()
        client.sendall(b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 401")
        assert time.monotonic() - begin < 5
