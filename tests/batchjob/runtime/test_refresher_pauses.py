"""Pauses of `Refresher` between reads."""

import logging
import threading
import time

import pytest

from batchjob.runtime.background import AbsentError, PostponedError, Refresher
from tests.helpers.waiting import scaled


def failing_refresher(error, **options):
    def read():
        raise error

    return Refresher("source", read, 10.0, 60.0, **options)


def pauses_after_refreshes(refresher, times):
    pauses = []
    for _ in range(times):
        refresher.refresh()
        pauses.append(refresher.pause)
    return pauses


def test_pause_is_interval_without_longest_pause():
    assert pauses_after_refreshes(failing_refresher(OSError("no")), 3) == [10, 10, 10]


def test_pause_doubles_with_each_consecutive_failure():
    refresher = failing_refresher(OSError("no"), longest_pause=50)
    assert pauses_after_refreshes(refresher, 5) == [10, 20, 40, 50, 50]


def test_postponed_error_sets_longer_pause():
    refresher = failing_refresher(PostponedError("busy", 300), longest_pause=50)
    assert pauses_after_refreshes(refresher, 2) == [300, 300]


@pytest.mark.parametrize(
    ("error", "level"),
    [(PostponedError("x", 1), logging.WARNING), (AbsentError("x", 1), logging.INFO)],
)
def test_absent_source_is_logged_as_info(caplog, error, level):
    caplog.set_level(logging.INFO, logger="batchjob.runtime.background")
    refresher = failing_refresher(error)
    refresher.refresh()
    refresher.refresh()
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(level, "source: x")]


def test_first_read_waits_for_first_pause():
    has_read = threading.Event()
    refresher = Refresher("source", has_read.set, 3600.0, 60.0, first_pause=0.2)
    start_time = time.monotonic()
    refresher.start()
    assert has_read.wait(scaled(30))
    waited_seconds = time.monotonic() - start_time
    refresher.stop()
    assert waited_seconds >= 0.2
