"""How many requests are answered at a time, and how many of them may be costly."""

import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import pytest

from batchjob_stats_db.database.engine import parse_url
from batchjob_stats_server import turns
from batchjob_stats_server.turns import plan_threads
from tests.helpers.waiting import scaled

SQLITE, POSTGRESQL = (
    parse_url("sqlite:////var/lib/batchjob/jobs.db"),
    parse_url("postgresql://db/jobs"),
)


@pytest.mark.parametrize(
    ("url", "max_threads", "light", "heavy"),
    [
        (SQLITE, 8, 5, 3),  # on two CPUs
        (SQLITE, 4, 2, 2),
        (SQLITE, 2, 1, 1),
        (SQLITE, 1, 1, 1),
        (POSTGRESQL, 40, 20, 20),
        (POSTGRESQL, 3, 2, 1),
    ],
)
def test_costly_requests_leave_threads_to_others(monkeypatch, url, max_threads, light, heavy):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    threads = plan_threads(url, max_threads)
    assert (threads.light.capacity(), threads.heavy.capacity()) == (light, heavy)
    assert threads.connections() == light + heavy + 1  # of readiness


def test_short_work_on_sqlite_is_serial(monkeypatch):
    monkeypatch.setattr("batchjob_stats_server.turns.LONGEST_WAIT_SECONDS", scaled(10))
    threads, running, running_counts = plan_threads(SQLITE, 8), [], []

    def work():
        running.append(1)
        running_counts.append(len(running))
        time.sleep(0.005)
        running.pop()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(threads.run_short, work) for _ in range(8)]:
            future.result()
    assert max(running_counts) == 1


def test_long_work_does_not_delay_short_work():
    threads, started, released = plan_threads(SQLITE, 8), threading.Event(), threading.Event()

    def work():
        started.set()
        return released.wait(scaled(60))

    with ThreadPoolExecutor(1) as pool:
        long_work = pool.submit(threads.run_short, work)
        assert started.wait(scaled(60))
        assert threads.run_short(lambda: "done") == "done"
        assert not long_work.done()
        released.set()
        assert long_work.result()


@pytest.fixture
def run_in_turn(monkeypatch):
    """Runs short work that waits for its turn however long that takes; False: it never came."""
    monkeypatch.setattr(turns, "LONGEST_WAIT_SECONDS", scaled(10))

    def run(threads):
        begun = time.monotonic()
        threads.run_short(lambda: None)
        return time.monotonic() - begun < scaled(10)

    return run


def test_failed_work_releases_its_turn(run_in_turn):
    threads = plan_threads(SQLITE, 8)
    with pytest.raises(ZeroDivisionError):
        threads.run_short(lambda: 1 / 0)
    assert run_in_turn(threads)


def test_short_work_on_postgresql_is_concurrent():
    threads = plan_threads(POSTGRESQL, 8)
    with ThreadPoolExecutor(2) as pool:
        barrier = threading.Barrier(2, timeout=scaled(60))
        for future in [pool.submit(threads.run_short, barrier.wait) for _ in range(2)]:
            future.result()


def answer_soon():
    """A future that is done shortly afterwards."""
    answer = Future()
    threading.Timer(0.02, answer.set_result, [None]).start()
    return answer


def test_wait_for_store_ends_with_its_answer_or_in_time():
    threads, answer = plan_threads(SQLITE, 4), answer_soon()
    threads.store_seconds = scaled(60)
    threads.wait_for_store([answer])
    assert answer.done()
    threads.store_seconds = 0.01
    threads.wait_for_store([Future()])


def test_one_thread_does_not_wait_for_store():
    threads, answer = plan_threads(POSTGRESQL, 4), Future()  # two for short work
    threads.store_seconds = scaled(60)
    with ThreadPoolExecutor(2) as pool:
        requests = [pool.submit(threads.wait_for_store, [answer]) for _ in range(2)]
        continued, waiting = wait(requests, scaled(60), FIRST_COMPLETED)
        assert (len(continued), len(waiting)) == (1, 1)
        answer.set_result(None)
        for request in requests:
            request.result(scaled(60))
    threads.wait_for_store([answer_soon()])


def test_short_work_that_waits_for_store_gives_its_turn_to_others(run_in_turn):
    threads, answer, started = plan_threads(SQLITE, 8), Future(), threading.Event()
    threads.store_seconds = scaled(60)

    def work():
        started.set()
        threads.wait_for_store([answer])

    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(threads.run_short, work)
        assert started.wait(scaled(60))
        assert run_in_turn(threads)
        assert not request.done()
        answer.set_result(None)
        request.result(scaled(60))
    assert run_in_turn(threads)
