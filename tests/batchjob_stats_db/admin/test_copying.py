"""Copying a database into another one with `batchjob_stats_db copy`."""

import json

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine, writer_lock
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.main import main

NOW = 1_775_300_000
TABLES = schema.metadata.sorted_tables


@pytest.fixture
def source(tmp_path):
    """An SQLite database with a row in each table, and a token made from another token."""
    url = parse_url(f"sqlite:///{tmp_path}/source.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    with engine.begin() as db:
        for table in TABLES:
            db.execute(sa.insert(table), {each.name: sample_value(each) for each in table.columns})
        later = {"id": 7, "parent_id": 1, "digest": "another"}
        row = {each.name: sample_value(each) for each in schema.api_token.columns}
        db.execute(sa.insert(schema.api_token), row | later)
    engine.dispose()
    return url


def sample_value(column):
    """The same value for columns that refer to each other."""
    if column.name == "parent_id":
        return None
    if isinstance(column.type, sa.LargeBinary):
        return b"#!/bin/sh\n"
    return "c1" if isinstance(column.type, sa.Text) else 1


@pytest.fixture
def run_copy(source, tmp_path, capsys):
    """Runs the command; returns status, output and errors."""
    config = tmp_path / "stats_db.yml"

    def call(to_url, from_url=source):
        config.write_text(
            f"db: {{url: {json.dumps(from_url.render_as_string(hide_password=False))}}}\n"
        )
        text = to_url.render_as_string(hide_password=False)
        status = main(["--config.file", str(config), "copy", "--to", text])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def read_tables(url):
    engine = writer_engine(url)
    with engine.connect() as db:
        found = {
            table.name: db.execute(sa.select(table).order_by(*table.primary_key)).all()
            for table in TABLES
        }
    engine.dispose()
    return {name: [tuple(row) for row in rows] for name, rows in found.items()}


def test_all_rows_of_all_tables_are_copied(run_copy, source, empty_url):
    status, out, _ = run_copy(empty_url)
    assert (status, out) == (0, f"{len(TABLES) + 1} rows\n")
    assert read_tables(empty_url) == read_tables(source)


def test_copy_there_and_back(run_copy, source, empty_url, tmp_path):
    back = parse_url(f"sqlite:///{tmp_path}/back.db")
    assert run_copy(empty_url)[0] == run_copy(back, from_url=empty_url)[0] == 0
    assert read_tables(back) == read_tables(source)


def test_new_jobs_get_ids_after_the_copied_ones(run_copy, empty_url, job):
    run_copy(empty_url)
    engine = writer_engine(empty_url)
    Store(engine, "c1", UsagePolicy(), clock=lambda: NOW).write(Batch((job("5"),), (), "", 0), "s")
    with engine.connect() as db:
        assert db.scalars(sa.select(schema.job.c.id).order_by(schema.job.c.id)).all() == [1, 2]
    engine.dispose()


def test_target_with_rows_is_left_unchanged(run_copy, source, empty_url):
    run_copy(empty_url)
    before = read_tables(empty_url)
    status, _, error = run_copy(empty_url)
    assert status == 2
    assert error.endswith("--to: expected an empty database, but account has rows\n")
    assert read_tables(empty_url) == before


def test_target_with_another_schema_is_left_unchanged(run_copy, empty_url):
    run_copy(empty_url)
    engine = writer_engine(empty_url)
    with engine.begin() as db:
        db.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    status, _, error = run_copy(empty_url)
    assert status == 2
    assert "0000" in error
    with engine.connect() as db:
        assert db.scalar(sa.text("SELECT version_num FROM alembic_version")) == "0000"
    engine.dispose()


def test_copy_is_refused_while_the_poller_writes(run_copy, source, empty_url):
    with writer_lock(source):
        status, _, error = run_copy(empty_url)
    assert status != 0
    assert "is already writing to it" in error


def test_copy_into_itself_is_refused(run_copy, source):
    assert run_copy(source)[0] == 2


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("--to=x", "--to: expected sqlite:///PATH or postgresql://..., got 'x'"),
        ("--to=mysql://h/d", "--to: expected sqlite:///PATH or postgresql://..., not mysql"),
        ("--to=sqlite://", "--to: expected the path of a file: sqlite:////var/lib/"),
        (
            "--to=postgresql://127.0.0.1:1/d",
            "postgresql://127.0.0.1:1/d: cannot be used: connection failed",
        ),
        ("--to=sqlite:////nowhere/x.db", "/nowhere/x.db.writer: No such file or directory"),
    ],
)
def test_unusable_target_is_reported(source, capsys, target, message):
    url = f"--db.url={source.render_as_string(hide_password=False)}"
    assert main([url, "copy", target]) > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"batchjob_stats_db: {message}")


def test_missing_password_file_is_reported(source, capsys):
    url = f"--db.url={source.render_as_string(hide_password=False)}"
    options = ["--to=postgresql://h/d", "--to-password-file=/nowhere"]
    assert main([url, "copy", *options]) == 2
    message = "--to-password-file: /nowhere: No such file or directory"
    assert capsys.readouterr().err == f"batchjob_stats_db: {message}\n"
