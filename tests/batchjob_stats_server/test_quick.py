"""Pages that are made in the event loop, and what happens where that is not quick."""

import sqlite3
import time

import pytest
import sqlalchemy as sa

from batchjob_stats_db.engine import DatabaseError, parse, quick_reader
from batchjob_stats_db.fetching import turn
from batchjob_stats_server.quick import Quick
from batchjob_stats_server.self_metrics import ServerMetrics

_ENDLESS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0
"""


@pytest.fixture
def url(tmp_path):
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE job (id INTEGER)")
        db.executemany("INSERT INTO job VALUES (?)", [(1,), (2,)])
    db.close()
    return parse(f"sqlite:///{path}")


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def busy():
    return []


@pytest.fixture
def quick(url, busy, clock):
    made = Quick(quick_reader(url, 0.5), ServerMetrics().quick, lambda: len(busy), lambda: clock[0])
    yield made
    made.stop()


def count(db):
    return db.scalar(sa.text("SELECT count(*) FROM job"))


def test_what_is_quick_is_answered(quick):
    assert quick.ask(count) == 2


def endless(db):
    return db.scalar(sa.text(_ENDLESS))


def test_what_is_slow_is_given_up_and_left_to_threads_for_a_second(quick, clock):
    begun = time.monotonic()
    assert quick.ask(endless) is None
    assert time.monotonic() - begun < 5  # it would never end
    assert quick.ask(count) is None
    clock[0] += 1
    assert quick.ask(count) == 2


def test_what_stays_slow_is_tried_ever_more_rarely_until_it_is_quick(quick, clock):
    tries = 0

    def slow(db):
        nonlocal tries
        tries += 1
        return endless(db)

    for _ in range(70):
        assert quick.ask(slow) is None
        assert quick.ask(count) in (None, 2)  # what is quick between does not help
        clock[0] += 1
    assert tries == 7  # after 1, 3, 7, 15, 31 and 63 seconds
    clock[0] += 180
    assert quick.ask(count) == 2
    assert quick.ask(slow) is None
    clock[0] += 1
    assert quick.ask(count) == 2


def test_all_statements_of_a_look_up_have_one_time(quick):
    def several(db):
        for _ in range(5):
            assert count(db) == 2
            time.sleep(0.2)

    assert quick.ask(several) is None


def test_what_came_too_late_is_answered_and_not_tried_again(quick, clock):
    def late(db):
        clock[0] += 1
        return count(db)

    assert quick.ask(late) == 2
    assert quick.ask(count) is None


def test_it_is_not_tried_while_others_are_busy(quick, busy):
    busy.append("sums")
    assert quick.ask(count) is None
    busy.clear()
    assert quick.ask(count) == 2
    with turn():
        assert quick.ask(count) is None
    assert quick.ask(count) == 2  # without a pause


def test_nobody_waits_for_a_lock(quick, url, clock):
    with sqlite3.connect(url.database, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        assert quick.ask(count) is None
        assert time.monotonic() - begun < 2
        other.execute("ROLLBACK")
    other.close()
    clock[0] += 1
    assert quick.ask(count) == 2


def test_an_error_of_the_question_is_the_callers(quick):
    def wrong(_db):
        raise ValueError("no such page")

    with pytest.raises(ValueError, match="no such page"):
        quick.ask(wrong)
    assert quick.ask(count) == 2


def test_a_database_that_is_not_there(tmp_path):
    with pytest.raises(DatabaseError, match="no such database"):
        quick_reader(parse(f"sqlite:///{tmp_path}/none.db"), 0.02)
