"""What many ask at once is looked up once, and forgotten a moment later."""

import asyncio
import threading
import time

import pytest
from anyio import CapacityLimiter, to_thread

from batchjob_stats_server.recent import Recent


@pytest.fixture
def asked():
    return []


@pytest.fixture
def make(asked):
    """Something else each time."""

    def made():
        asked.append(None)
        return len(asked)

    return made


def test_an_answer_holds_for_a_moment(make):
    now = 0.0
    recent = Recent(1.0, clock=lambda: now)

    async def ask():
        nonlocal now
        assert await recent.of("a", make) == await recent.of("a", make) == 1
        assert await recent.of("b", make) == 2
        now = 1.0
        assert await recent.of("a", make) == 3

    asyncio.run(ask())


def test_who_asks_meanwhile_waits_for_the_same(asked):
    recent, go = Recent(), threading.Event()

    def slow():
        asked.append(None)
        assert go.wait(10)
        return "answer"

    async def ask():
        several = [asyncio.ensure_future(recent.of("a", slow)) for _ in range(5)]
        await asyncio.sleep(0)
        several.pop().cancel()  # one does not wait for it
        go.set()
        assert await asyncio.gather(*several) == ["answer"] * 4

    asyncio.run(ask())
    assert len(asked) == 1


def test_what_nobody_waits_for_any_more_is_not_begun(asked):
    """Nor does it keep a thread from those who do wait."""
    recent, started, go = Recent(), threading.Event(), threading.Event()

    def busy():
        started.set()
        assert go.wait(30)

    async def ask():
        to_thread.current_default_thread_limiter().total_tokens = 1
        first = asyncio.create_task(recent.of("busy", busy))
        await asyncio.to_thread(started.wait, 30)
        left = [asyncio.create_task(recent.of("slow", lambda: asked.append("slow"))) for _ in "ab"]
        await asyncio.sleep(0)
        left[0].cancel()
        await asyncio.sleep(0.01)
        assert not left[1].done()
        left[1].cancel()
        await asyncio.gather(*left, return_exceptions=True)
        after = asyncio.create_task(recent.of("next", lambda: asked.append("next")))
        await asyncio.sleep(0.01)
        go.set()
        await asyncio.gather(first, after)
        assert asked == ["next"]
        assert await recent.of("slow", lambda: "anew") == "anew"

    asyncio.run(ask())


def test_what_a_thread_has_begun_keeps_its_turn_when_all_go_away():
    recent, running, most = Recent(threads=CapacityLimiter(1)), [], []

    def make():
        running.append(None)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()

    async def ask():
        for number in range(4):
            asked = asyncio.create_task(recent.of(number, make))
            await asyncio.sleep(0.02)
            asked.cancel()
        await recent.of("last", make)

    asyncio.run(ask())
    assert set(most) == {1}


def test_the_moment_begins_when_the_answer_is_begun(asked):
    """Who comes later than that is not told what the database held before."""
    now, go = 0.0, threading.Event()
    recent = Recent(1.0, clock=lambda: now)

    def slow():
        asked.append(None)
        assert go.wait(10)
        return len(asked)

    async def ask():
        nonlocal now
        first = asyncio.ensure_future(recent.of("a", slow))
        await asyncio.sleep(0)
        now = 1.0
        second = asyncio.ensure_future(recent.of("a", slow))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, second)

    asyncio.run(ask())
    assert len(asked) == 2


def test_a_failure_is_told_and_not_kept(make):
    recent = Recent()

    def broken():
        raise ValueError("no database")

    async def ask():
        with pytest.raises(ValueError, match="no database"):
            await recent.of("a", broken)
        assert await recent.of("a", make) == 1

    asyncio.run(ask())


def test_what_was_changed_is_looked_up_anew(asked, make):
    """Also what somebody is about to be told of the time before."""
    recent, go = Recent(60.0), threading.Event()

    def slow():
        assert go.wait(10)
        return "before"

    async def ask():
        first = asyncio.ensure_future(recent.of("a", slow))
        await asyncio.sleep(0)
        recent.forget()
        go.set()
        assert await first == "before"
        assert await recent.of("a", make) == await recent.of("a", make) == 1

    asyncio.run(ask())


def test_its_memory_is_bounded(make):
    recent = Recent(60.0, most=3)

    async def ask():
        for key in range(100):
            await recent.of(key, make)
        assert await recent.of(99, make) == 100
        assert await recent.of(0, make) == 101

    asyncio.run(ask())


def test_large_answers_are_fewer(asked):
    recent = Recent(60.0, size=len, most_bytes=250)

    def large():
        asked.append(None)
        return b"x" * 100

    async def ask():
        for key in "abc":
            await recent.of(key, large)
        await recent.of("c", large)
        await recent.of("b", large)
        assert len(asked) == 3
        await recent.of("a", large)
        assert len(asked) == 4

    asyncio.run(ask())


def test_values_are_made_in_turn_by_so_many_threads():
    recent, made = Recent(threads=CapacityLimiter(1)), []

    async def ask():
        free = to_thread.run_sync(lambda: "free")
        go = threading.Event()
        slow = [
            asyncio.ensure_future(recent.of(n, lambda n=n: (go.wait(10), made.append(n))))
            for n in range(20)
        ]
        await asyncio.sleep(0)
        assert await free == "free"  # all others have threads of their own
        go.set()
        await asyncio.gather(*slow)

    asyncio.run(ask())
    assert made == list(range(20))
