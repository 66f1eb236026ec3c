"""A daemon exits with 1 after a failure that may be temporary, so that systemd restarts it."""

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
    """URL of a database with the current schema."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert poller([f"--db.url={url}", "migrate"]) == 0
    return url


@pytest.fixture
def run_daemon(tmp_path, capsys):
    """Run one of the daemons; returns its exit status and error message."""
    config = tmp_path / "stats_db.yml"
    config.write_text(CLUSTERS)

    def run(program, *flags):
        argv = [f"--config.file={config}", *flags] if program is poller else list(flags)
        status = program(argv)
        return status, capsys.readouterr().err

    return run


@pytest.mark.parametrize("program", [poller, server])
def test_unreachable_postgresql_exits_with_1(run_daemon, program):
    with socket.socket() as bound:  # nobody listens on its port, and nobody else can take it
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        status, message = run_daemon(program, f"--db.url=postgresql://nobody@127.0.0.1:{port}/jobs")
    assert status == 1
    assert "cannot be used" in message


@pytest.mark.parametrize("program", [poller, server])
def test_locked_database_exits_with_1(run_daemon, program, database, monkeypatch):
    with sqlite3.connect(database.removeprefix("sqlite:///")) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(
            "batchjob_stats_db.database.revision.read_revision", _read_revision_without_waiting
        )
        status, message = run_daemon(program, f"--db.url={database}")
    assert status == 1
    assert "database is locked" in message


def _read_revision_without_waiting(connection):
    """Read the revision of the schema without waiting for the lock."""
    connection.exec_driver_sql("PRAGMA busy_timeout=1")
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


@pytest.mark.skipif(os.geteuid() == 0, reason="root opens every file")
@pytest.mark.parametrize("program", [poller, server])
def test_unreadable_database_exits_with_1(run_daemon, program, database, tmp_path):
    (tmp_path / "jobs.db").chmod(0)
    status, message = run_daemon(program, f"--db.url={database}")
    assert status == 1
    assert "unable to open database file" in message


def test_second_writer_exits_with_1(run_daemon, database):
    with writer_lock(parse_url(database)):
        status, message = run_daemon(poller, f"--db.url={database}")
    assert status == 1
    assert "is already writing to it" in message


@pytest.mark.parametrize("program", [poller, server])
def test_unusable_database_exits_with_2(run_daemon, program, tmp_path):
    assert run_daemon(program, f"--db.url=sqlite:///{tmp_path}/none.db")[0] == 2
    (tmp_path / "text.db").write_text("not a database " * 1000)
    assert run_daemon(program, f"--db.url=sqlite:///{tmp_path}/text.db")[0] == 2
    assert run_daemon(program, "--db.url=mysql://x")[0] == 2


@pytest.mark.parametrize("program", [poller, server])
def test_listen_address_in_use_exits_with_1(run_daemon, program, database):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address_flag = f"--web.listen-address=127.0.0.1:{other.getsockname()[1]}"
        status, message = run_daemon(program, f"--db.url={database}", address_flag)
    assert status == 1
    assert "cannot listen on 127.0.0.1" in message
