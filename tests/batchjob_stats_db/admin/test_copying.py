"""A whole database into another one, by the command."""

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
    """An SQLite database with a row in each table, and a token made with another one."""
    url = parse_url(f"sqlite:///{tmp_path}/source.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    with engine.begin() as db:
        for table in TABLES:
            db.execute(sa.insert(table), {each.name: some_value(each) for each in table.columns})
        later = {"id": 7, "parent_id": 1, "digest": "another"}
        row = {each.name: some_value(each) for each in schema.api_token.columns}
        db.execute(sa.insert(schema.api_token), row | later)
    engine.dispose()
    return url


def some_value(column):
    """The same for columns that refer to each other."""
    if column.name == "parent_id":
        return None
    if isinstance(column.type, sa.LargeBinary):
        return b"#!/bin/sh\n"
    return "c1" if isinstance(column.type, sa.Text) else 1


@pytest.fixture
def copy(source, tmp_path, capsys):
    """Runs the command; returns status, output and complaints."""
    config = tmp_path / "stats_db.yml"

    def call(to, of=source):
        config.write_text(f"db: {{url: {json.dumps(of.render_as_string(hide_password=False))}}}\n")
        text = to.render_as_string(hide_password=False)
        status = main(["--config.file", str(config), "copy", "--to", text])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def contents(url):
    engine = writer_engine(url)
    with engine.connect() as db:
        found = {
            table.name: db.execute(sa.select(table).order_by(*table.primary_key)).all()
            for table in TABLES
        }
    engine.dispose()
    return {name: [tuple(row) for row in rows] for name, rows in found.items()}


def test_each_row_of_each_table_is_copied(copy, source, empty_url):
    status, out, _ = copy(empty_url)
    assert (status, out) == (0, f"{len(TABLES) + 1} rows\n")
    assert contents(empty_url) == contents(source)


def test_there_and_back(copy, source, empty_url, tmp_path):
    back = parse_url(f"sqlite:///{tmp_path}/back.db")
    assert copy(empty_url)[0] == copy(back, of=empty_url)[0] == 0
    assert contents(back) == contents(source)


def test_new_jobs_get_numbers_after_those_copied(copy, empty_url, job):
    copy(empty_url)
    engine = writer_engine(empty_url)
    Store(engine, "c1", UsagePolicy(), clock=lambda: NOW).write(Batch((job("5"),), (), "", 0), "s")
    with engine.connect() as db:
        assert db.scalars(sa.select(schema.job.c.id).order_by(schema.job.c.id)).all() == [1, 2]
    engine.dispose()


def test_a_database_with_rows_is_left_as_it_is(copy, source, empty_url):
    copy(empty_url)
    before = contents(empty_url)
    status, _, complaint = copy(empty_url)
    assert status == 2
    assert complaint.endswith("--to: expected an empty database, but account has rows\n")
    assert contents(empty_url) == before


def test_a_database_of_another_version_is_left_as_it_is(copy, empty_url):
    copy(empty_url)
    engine = writer_engine(empty_url)
    with engine.begin() as db:
        db.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    status, _, complaint = copy(empty_url)
    assert status == 2
    assert "0000" in complaint
    with engine.connect() as db:
        assert db.scalar(sa.text("SELECT version_num FROM alembic_version")) == "0000"
    engine.dispose()


def test_not_while_the_poller_writes(copy, source, empty_url):
    with writer_lock(source):
        status, _, complaint = copy(empty_url)
    assert status != 0
    assert "is already writing to it" in complaint


def test_not_into_itself(copy, source):
    assert copy(source)[0] == 2


@pytest.mark.parametrize(
    ("target", "told"),
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
def test_a_target_that_cannot_be_used_is_named(source, capsys, target, told):
    url = f"--db.url={source.render_as_string(hide_password=False)}"
    assert main([url, "copy", target]) > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"batchjob_stats_db: {told}")


def test_a_password_file_that_is_not_there(source, capsys):
    url = f"--db.url={source.render_as_string(hide_password=False)}"
    to = ["--to=postgresql://h/d", "--to-password-file=/nowhere"]
    assert main([url, "copy", *to]) == 2
    told = "--to-password-file: /nowhere: No such file or directory"
    assert capsys.readouterr().err == f"batchjob_stats_db: {told}\n"
