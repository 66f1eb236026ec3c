"""How many requests are answered at a time, and how many of them may be costly."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchjob_stats_db.database.engine import parse_url
from batchjob_stats_server.threads import plan_threads
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
    assert threads.connections() == light + heavy


def test_short_work_on_sqlite_is_serial(monkeypatch):
    monkeypatch.setattr("batchjob_stats_server.threads.LONGEST_WAIT_SECONDS", scaled(10))
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
    threads, released = plan_threads(SQLITE, 8), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        long_work = pool.submit(threads.run_short, lambda: released.wait(scaled(60)))
        while not threads.serial.is_busy():
            time.sleep(0.001)
        assert threads.run_short(lambda: "done") == "done"
        assert not long_work.done()
        released.set()
        assert long_work.result()
    assert not threads.serial.is_busy()


def test_failed_work_releases_its_turn():
    threads = plan_threads(SQLITE, 8)
    with pytest.raises(ZeroDivisionError):
        threads.run_short(lambda: 1 / 0)
    assert not threads.serial.is_busy()


def test_short_work_on_postgresql_is_concurrent():
    threads = plan_threads(POSTGRESQL, 8)
    with ThreadPoolExecutor(2) as pool:
        barrier = threading.Barrier(2, timeout=scaled(60))
        for future in [pool.submit(threads.run_short, barrier.wait) for _ in range(2)]:
            future.result()
