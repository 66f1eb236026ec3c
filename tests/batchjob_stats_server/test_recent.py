"""What many ask at once is looked up once, and forgotten a moment later."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

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
    assert recent.of("a", make) == recent.of("a", make) == 1
    assert recent.of("b", make) == 2
    now = 1.0
    assert recent.of("a", make) == 3


def test_who_asks_meanwhile_waits_for_the_same(asked):
    recent, begun, go = Recent(), threading.Event(), threading.Event()

    def slow():
        asked.append(None)
        begun.set()
        assert go.wait(10)
        return "answer"

    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(recent.of, "a", slow)
        assert begun.wait(10)
        others = [threads.submit(recent.of, "a", slow) for _ in range(4)]
        go.set()
        assert {each.result(10) for each in (first, *others)} == {"answer"}
    assert len(asked) == 1


def test_a_failure_is_told_and_not_kept(make):
    recent = Recent()

    def broken():
        raise ValueError("no database")

    with pytest.raises(ValueError, match="no database"):
        recent.of("a", broken)
    assert recent.of("a", make) == 1


def test_its_memory_is_bounded(make):
    recent = Recent(60.0, most=3)
    for key in range(100):
        recent.of(key, make)
    assert recent.of(99, make) == 100
    assert recent.of(0, make) == 101
