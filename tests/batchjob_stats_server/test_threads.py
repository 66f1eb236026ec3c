"""How many questions are answered at a time, and how many of them may be costly."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchjob_stats_db.database.engine import parse_url
from batchjob_stats_server.threads import plan_threads

SQLITE, POSTGRESQL = (
    parse_url("sqlite:////var/lib/batchjob/jobs.db"),
    parse_url("postgresql://db/jobs"),
)


@pytest.mark.parametrize(
    ("url", "most", "light", "heavy"),
    [
        (SQLITE, 8, 5, 3),  # on two CPUs, which SQLite has to itself
        (SQLITE, 4, 2, 2),
        (SQLITE, 2, 1, 1),
        (SQLITE, 1, 1, 1),
        (POSTGRESQL, 40, 20, 20),
        (POSTGRESQL, 3, 2, 1),
    ],
)
def test_costly_questions_leave_threads_to_others(monkeypatch, url, most, light, heavy):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    threads = plan_threads(url, most)
    assert (threads.light, threads.heavy.capacity()) == (light, heavy)
    assert threads.connections() == light + heavy


def test_short_work_with_sqlite_is_done_one_by_one():
    threads, at_once, most = plan_threads(SQLITE, 8), [], []

    def work():
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.005)
        at_once.pop()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(threads.run_short, work) for _ in range(8)]:
            done.result()
    assert max(most) == 1


def test_work_that_is_not_short_does_not_hold_up_others():
    threads, end = plan_threads(SQLITE, 8), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(threads.run_short, lambda: end.wait(60))
        while not threads.serial.is_busy():
            time.sleep(0.001)
        assert threads.run_short(lambda: "done") == "done"
        assert not long.done()
        end.set()
        assert long.result()
    assert not threads.serial.is_busy()


def test_work_that_fails_lets_others_go_on():
    threads = plan_threads(SQLITE, 8)
    with pytest.raises(ZeroDivisionError):
        threads.run_short(lambda: 1 / 0)
    assert not threads.serial.is_busy()


def test_postgresql_works_in_processes_of_its_own():
    threads = plan_threads(POSTGRESQL, 8)
    with ThreadPoolExecutor(2) as pool:
        both = threading.Barrier(2, timeout=60)
        for done in [pool.submit(threads.run_short, both.wait) for _ in range(2)]:
            done.result()
