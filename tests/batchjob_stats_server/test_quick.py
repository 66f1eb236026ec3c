"""Pages that are made in the event loop, and what happens where that is not quick."""

import sqlite3
import time

import pytest
import sqlalchemy as sa

from batchjob_stats_db.engine import DatabaseError, parse, quick_reader
from batchjob_stats_server.quick import Quick

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
def quick(url, clock):
    made = Quick(quick_reader(url, 0.02), lambda: clock[0])
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

    for _ in range(300):
        assert quick.ask(slow) is None
        clock[0] += 1
    assert tries == 10  # after 1, 3, 7, 15, 31, 63, 123, 183 and 243 seconds
    clock[0] += 60
    assert quick.ask(count) == 2
    assert quick.ask(slow) is None
    clock[0] += 1
    assert quick.ask(count) == 2


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
