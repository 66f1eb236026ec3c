"""A database that is damaged, another program's or of a newer version: one line that helps."""

import sqlite3

import pytest

from batchjob_cli.main import main
from batchjob_cli.up.records import record_runs
from batchjob_stats_db.main import main as stats_db


def error_line(capsys, status, arguments):
    assert main(arguments) == status
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error


COMMANDS = [["jobs"], ["job", "abc"], ["up", "--listen-address=127.0.0.1:0"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_file_that_is_no_database(tmp_path, capsys, command):
    database = tmp_path / "jobs.db"
    database.write_bytes(b"no database at all" * 1000)
    (tmp_path / "jobs.db.before-0003-20260101T000000Z").write_bytes(b"")
    error = error_line(capsys, 2 if command[0] == "up" else 5, [*command, f"--data={tmp_path}"])
    assert f"{database}: file is not a database" in error
    assert f"batchjob_stats_db --db.url=sqlite:///{database} check" in error
    assert "jobs.db.before-0003-20260101T000000Z" in error


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_malformed_page(tmp_path, capsys, command):
    record_runs(tmp_path)
    database = tmp_path / "jobs.db"
    content = bytearray(database.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    database.write_bytes(content)
    error = error_line(capsys, 2 if command[0] == "up" else 5, [*command, f"--data={tmp_path}"])
    assert f"{database}: database disk image is malformed" in error


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_database_of_another_program(tmp_path, capsys, command):
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    error = error_line(capsys, 2 if command[0] == "up" else 5, [*command, f"--data={tmp_path}"])
    assert "belongs to another program (tables bookmarks)" in error
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_database_of_newer_version(tmp_path, capsys, command):
    record_runs(tmp_path)
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    error = error_line(capsys, 2 if command[0] == "up" else 5, [*command, f"--data={tmp_path}"])
    assert f"{tmp_path / 'jobs.db'}: has schema 9999 of a newer version" in error
    assert "restore a backup" in error
    assert "batchjob_stats_db check" in error


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_directory_in_place_of_database(tmp_path, capsys, command):
    (tmp_path / "jobs.db").mkdir()
    error = error_line(capsys, 5, [*command, f"--data={tmp_path}"])
    assert f"{tmp_path / 'jobs.db'}: cannot be used: Is a directory" in error


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_file_in_place_of_data_directory(tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    status = 2 if command[0] == "up" else 5
    error = error_line(capsys, status, [*command, f"--data={tmp_path / 'file'}"])
    assert f"{tmp_path / 'file'}: expected a directory" in error


def test_backup_takes_the_place_of_a_damaged_database(tmp_path, capsys):
    record_runs(tmp_path)
    url = f"--db.url=sqlite:///{tmp_path / 'jobs.db'}"
    assert stats_db([url, "backup", str(tmp_path / "copy.db")]) == 0
    (tmp_path / "jobs.db").write_bytes(b"no database at all" * 1000)
    assert stats_db([url, "check"]) == 2
    for name in ("jobs.db-wal", "jobs.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "copy.db").replace(tmp_path / "jobs.db")
    assert main(["jobs", f"--data={tmp_path}"]) == 0
    assert capsys.readouterr().out.endswith("No job matches.\n")
