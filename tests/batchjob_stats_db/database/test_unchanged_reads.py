"""What is read again of an unchanged database is as it is in the database, at every moment."""

import time
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import (
    ChangeCounter,
    parse_url,
    read_if_changed,
    reader_engine,
    writer_engine,
)
from batchjob_stats_db.database.tokens import TokenRole

NAMES = sa.select(schema.cluster.c.name).order_by(schema.cluster.c.name)
BY_NAME = NAMES.where(schema.cluster.c.name == sa.bindparam("name"))


def add_cluster(db, name):
    db.execute(sa.insert(schema.cluster).values(name=name, first_time=0))


@pytest.fixture
def names(empty_url):
    """Read the clusters' names through a connection of the reader; add some with `names.add`."""
    url = parse_url(empty_url)
    writer = writer_engine(url, create=True)
    migrate(writer)
    reader = reader_engine(url)

    def read(statement=NAMES, **parameters):
        with reader.connect() as db:
            return [row.name for row in read_if_changed(db, statement, **parameters)]

    def add(name):
        with writer.begin() as db:
            add_cluster(db, name)

    read.add, read.reader, read.writer = add, reader, writer
    yield read
    reader.dispose()
    writer.dispose()


def test_every_change_is_seen_at_once(names):
    for number in range(20):
        assert names() == [f"c{each:02}" for each in range(number)]
        names.add(f"c{number:02}")


def test_unchanged_rows_are_not_read_again(names):
    names.add("c1")
    read = []
    sa.event.listen(names.reader, "before_cursor_execute", lambda *given: read.append(given))
    for _ in range(3):
        assert names(BY_NAME, name="c1") == ["c1"]
        assert names(BY_NAME, name="c2") == []
    assert len(read) == (2 if names.reader.dialect.name == "sqlite" else 6)


@contextmanager
def limited_reader(folder, seconds):
    """A connection to a SQLite database of no clusters, with a time limit for each statement."""
    url = parse_url(f"sqlite:///{folder}/jobs.db")
    writer = writer_engine(url, create=True)
    migrate(writer)
    writer.dispose()
    reader = reader_engine(url, statement_seconds=seconds)
    with reader.connect() as db:
        yield db
    reader.dispose()


def read_often(db):
    for _ in range(10_000):  # SQLite looks at the clock now and then
        assert read_if_changed(db, NAMES) == []


def test_time_limit_is_that_of_each_read(tmp_path):
    with limited_reader(tmp_path, 0.5) as db:
        read_if_changed(db, NAMES)
        time.sleep(0.6)  # the statement's own time is over
        read_often(db)


def test_read_that_fails_is_an_error_of_the_database(tmp_path):
    with limited_reader(tmp_path, -1) as db, pytest.raises(sa.exc.OperationalError):
        read_often(db)  # the time is over before it begins


def test_connection_that_writes_sees_its_own_changes(names):
    with names.writer.begin() as db:
        assert read_if_changed(db, NAMES) == []
        add_cluster(db, "c1")
        assert [row.name for row in read_if_changed(db, NAMES)] == ["c1"]


def test_revoked_token_is_unknown_at_once(names):
    now = int(time.time())
    with names.writer.begin() as db:
        text = tokens.create(db, "alice", TokenRole.USER, "test", now, expiry_time=now + 60)
    with names.reader.connect() as db:
        for _ in range(2):
            token = tokens.find(db, text, now)
            assert token.username == "alice"
        assert tokens.find(db, text, now + 60) is None
        db.rollback()
        with names.writer.begin() as writing:
            tokens.revoke(writing, token.id)
        assert tokens.find(db, text, now) is None


def test_change_counter_tells_each_change_of_sqlite(names):
    counter = ChangeCounter(names.reader.url)
    if names.reader.dialect.name != "sqlite":
        assert counter.count() is None
        return
    seen = {counter.count()}
    for number in range(20):
        names.add(f"c{number:02}")
        assert counter.count() not in seen
        seen.add(counter.count())
    assert len(seen) == 21
    with names.writer.begin() as db:
        add_cluster(db, "c99")
        assert counter.count() in seen  # not committed yet
    counter.close()


def test_change_counter_tells_a_replaced_database(tmp_path):
    url = parse_url(f"sqlite:///{tmp_path}/jobs.db")
    counter = ChangeCounter(url)
    assert counter.count() is None
    counts = []
    for _ in range(2):
        writer = writer_engine(url, create=True)
        migrate(writer)
        writer.dispose()
        counts += [counter.count(), counter.count()]
        (tmp_path / "jobs.db").rename(tmp_path / "before.db")
    assert counts[0] == counts[1] != counts[2] == counts[3]
    assert counter.count() is None
    counter.close()
