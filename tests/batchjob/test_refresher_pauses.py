import logging

import pytest

from batchjob.runtime.background import AbsentError, PostponedError, Refresher


def failing(error, **options):
    def read():
        raise error

    return Refresher("source", read, 10.0, 60.0, **options)


def pauses(refresher, times):
    seen = []
    for _ in range(times):
        refresher.refresh()
        seen.append(refresher.pause)
    return seen


def test_without_a_longest_pause_the_interval_stays():
    assert pauses(failing(OSError("no")), 3) == [10, 10, 10]


def test_the_pause_doubles_with_each_failure_in_a_row():
    assert pauses(failing(OSError("no"), longest_pause=50), 5) == [10, 20, 40, 50, 50]


def test_a_source_may_ask_for_a_longer_pause():
    assert pauses(failing(PostponedError("busy", 300), longest_pause=50), 2) == [300, 300]


@pytest.mark.parametrize(
    ("error", "level"),
    [(PostponedError("x", 1), logging.WARNING), (AbsentError("x", 1), logging.INFO)],
)
def test_what_is_absent_is_no_warning(caplog, error, level):
    caplog.set_level(logging.INFO)
    refresher = failing(error)
    refresher.refresh()
    refresher.refresh()
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(level, "source: x")]


def test_the_first_read_may_wait():
    refresher = Refresher("source", lambda: 1, 10.0, 60.0, first_pause=3600)
    refresher.start()
    refresher.stop()
    assert refresher.latest() is None
