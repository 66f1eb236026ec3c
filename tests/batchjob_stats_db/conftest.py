"""Every test of the database runs on SQLite and on a temporary PostgreSQL server."""

import logging
import shutil
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL

from batchjob.schedulers.records import JobRecord, NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from tests.batchjob_stats_db import postgresql_server

NOW = 1_775_300_000
_DATABASE_NUMBERS = count()


@pytest.fixture(scope="session")
def postgresql():
    """A PostgreSQL server on a socket in a temporary directory, with a migrated database."""
    if postgresql_server.program_directory() is None:
        pytest.skip("no PostgreSQL server is installed")
    with postgresql_server.running(Path("/tmp"), "fsync=off") as server:
        url = server.database("batchjob")
        engine = writer_engine(url)
        migrate(engine)
        engine.dispose()
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    engine = writer_engine(parse_url(f"sqlite:///{path}"), create=True)
    migrate(engine)
    engine.dispose()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> URL:
    """The URL of a migrated, empty database."""
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield parse_url(f"sqlite:///{path}")
        return
    postgresql_url = request.getfixturevalue("postgresql")
    yield postgresql_url
    # Creating a database for each test would take half a second each.
    tables = reversed(schema.metadata.sorted_tables)
    deletions = [f"DELETE FROM {table.name}" for table in tables]
    postgresql_server.run(
        postgresql_url, "; ".join([*deletions, "ALTER SEQUENCE job_id_seq RESTART"])
    )


@pytest.fixture
def empty_url(tmp_path, url):
    """The URL of a database without tables."""
    if url.get_backend_name() == "sqlite":
        yield parse_url(f"sqlite:///{tmp_path}/empty.db")
        return
    new_url = url.set(database=f"empty_{next(_DATABASE_NUMBERS)}")
    admin_url = url.set(database="postgres")
    postgresql_server.run(admin_url, f"CREATE DATABASE {new_url.database}")
    yield new_url
    postgresql_server.run(admin_url, f"DROP DATABASE {new_url.database} WITH (FORCE)")


@pytest.fixture
def engine(url):
    engine = writer_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def restore_logging():
    """Undo what main() changes: it logs to the standard error of the moment."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def now():
    return NOW


@pytest.fixture
def store(engine):
    return Store(engine, "c1", UsagePolicy(), clock=lambda: NOW)


@pytest.fixture
def job():
    """Makes records: `job("1", state=JobState.RUNNING, end_time=None)`."""

    def make(jobid="1", **fields):
        given = {
            "cluster": "c1",
            "submit_time": NOW - 7200,
            "state": JobState.COMPLETED,
            "source": "sacct",
            "user": "alice",
            "uid": 1001,
            "account": "physics",
            "partition": "cpu",
            "name": "train",
            "start_time": NOW - 7000,
            "end_time": NOW - 3400,
            "elapsed_seconds": 3600,
            "exit_code": 0,
            "allocated_cpus": 4,
            "allocated_memory_bytes": 8 << 30,
            "allocated_nodes": 1,
            "node_list": "n001",
            "nodes": (NodeShare("n001", 4, 8 << 30, None),),
            **fields,
        }
        given.setdefault("state_word", given["state"].value)
        return JobRecord(jobid=jobid, **given)

    return make


@pytest.fixture
def rows(engine):
    """All rows of a table as dictionaries: `rows(schema.job)`."""

    def read(table):
        with engine.connect() as db:
            order = table.primary_key.columns
            return [dict(row) for row in db.execute(sa.select(table).order_by(*order)).mappings()]

    return read
