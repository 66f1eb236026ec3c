"""What may pass by itself ends a daemon with status 1, which systemd answers by another start."""

import os
import socket
import sqlite3

import pytest

from batchjob_stats_db.database.engine import parse_url, writer_lock
from batchjob_stats_db.main import main as poller
from batchjob_stats_server.main import main as server

CLUSTERS = "clusters: [{name: c, sources: {jsonl: {path: /nowhere}}}]\n"


@pytest.fixture
def database(tmp_path):
    """URL of a database of the present schema."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert poller([f"--db.url={url}", "migrate"]) == 0
    return url


@pytest.fixture
def run(tmp_path, capsys):
    """Status and complaint of one of the daemons."""
    config = tmp_path / "stats_db.yml"
    config.write_text(CLUSTERS)

    def call(program, *flags):
        argv = [f"--config.file={config}", *flags] if program is poller else list(flags)
        status = program(argv)
        return status, capsys.readouterr().err

    return call


@pytest.mark.parametrize("program", [poller, server])
def test_a_postgresql_that_does_not_answer(run, program):
    with socket.socket() as bound:  # nobody listens on its port, and nobody else can take it
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        status, said = run(program, f"--db.url=postgresql://nobody@127.0.0.1:{port}/jobs")
    assert status == 1
    assert "cannot be used" in said


@pytest.mark.parametrize("program", [poller, server])
def test_a_database_that_is_locked(run, program, database, monkeypatch):
    with sqlite3.connect(database.removeprefix("sqlite:///")) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("batchjob_stats_db.database.revision.read_revision", _locked)
        status, said = run(program, f"--db.url={database}")
    assert status == 1
    assert "database is locked" in said


def _locked(connection):
    """The question of the schema, by one that does not wait."""
    connection.exec_driver_sql("PRAGMA busy_timeout=1")
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


@pytest.mark.skipif(os.geteuid() == 0, reason="root opens every file")
@pytest.mark.parametrize("program", [poller, server])
def test_a_database_that_cannot_be_opened(run, program, database, tmp_path):
    (tmp_path / "jobs.db").chmod(0)
    status, said = run(program, f"--db.url={database}")
    assert status == 1
    assert "unable to open database file" in said


def test_another_process_that_writes(run, database):
    with writer_lock(parse_url(database)):
        status, said = run(poller, f"--db.url={database}")
    assert status == 1
    assert "is already writing to it" in said


@pytest.mark.parametrize("program", [poller, server])
def test_what_is_wrong_for_good(run, program, tmp_path):
    assert run(program, f"--db.url=sqlite:///{tmp_path}/none.db")[0] == 2
    (tmp_path / "text.db").write_text("not a database " * 1000)
    assert run(program, f"--db.url=sqlite:///{tmp_path}/text.db")[0] == 2
    assert run(program, "--db.url=mysql://x")[0] == 2


@pytest.mark.parametrize("program", [poller, server])
def test_an_address_that_is_taken(run, program, database):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"--web.listen-address=127.0.0.1:{other.getsockname()[1]}"
        status, said = run(program, f"--db.url={database}", taken)
    assert status == 1
    assert "cannot listen on 127.0.0.1" in said
