"""Backup and restore."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import reader_engine, writer_lock
from batchjob_stats_db.main import main
from batchjob_stats_db.poller.self_metrics import PollerMetrics


@pytest.fixture
def run(url, tmp_path, capsys, monkeypatch):
    """Runs the command on the test's database; returns status, output and errors."""
    # Debian keeps pg_dump beside the server of its release.
    for programs in Path("/usr/lib/postgresql").glob("*/bin"):
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    if url.get_backend_name() == "postgresql" and not shutil.which("pg_dump"):
        pytest.skip("pg_dump is not installed")
    config = tmp_path / "stats_db.yml"
    text = url.render_as_string(hide_password=False)
    config.write_text(
        f"db: {{url: {json.dumps(text)}}}\nbackup: {{directory: {tmp_path}/kept, keep: 2}}\n"
    )

    def call(*arguments):
        status = main(["--config.file", str(config), *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def recorded_users(url):
    """Users of the recorded jobs, read by a separate engine."""
    engine = reader_engine(url)
    with engine.connect() as db:
        found = sorted(row.username for row in db.execute(sa.select(schema.job.c.username)))
    engine.dispose()
    return found


@pytest.fixture
def job_of_alice(run, url, store, job):
    """A database with one job, of alice."""
    store.write(Batch((job("1"),), (), "", 0), "s")
    store.engine.dispose()


def skip_unless_sqlite(url):
    if url.get_backend_name() != "sqlite":
        pytest.skip("only SQLite has a database file")


def test_backup_directory_is_created_and_keeps_the_newest(
    job_of_alice, run, url, tmp_path, monkeypatch
):
    stamps = iter(f"2026010{day}T000000Z" for day in range(1, 5))
    monkeypatch.setattr("batchjob_stats_db.admin.commands.time_stamp", lambda: next(stamps))
    for _ in range(3):
        status, output, error = run("backup")
        assert status == 0, error
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert [name.partition(".")[0][-16:-9] for name in kept] == ["2026010"] * 2
    assert "20260101" in output.splitlines()[1]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "kept").iterdir()} == {0o600}
    assert run("backup", tmp_path / "many/of/them", "--keep", 1)[0] == 0
    assert len(list((tmp_path / "many/of/them").iterdir())) == 1


def test_target_with_a_suffix_is_a_file(job_of_alice, run, url, tmp_path):
    ending = "db" if url.get_backend_name() == "sqlite" else "dump"
    copy = tmp_path / f"copy.{ending}"
    status, output, error = run("backup", copy)
    assert status == 0, error
    assert output.startswith(f"{copy}: ")
    status, _, error = run("backup", copy)
    assert (status, error) == (2, f"batchjob_stats_db: {copy}: already exists\n")


def test_damaged_database_is_not_backed_up(job_of_alice, run, url, tmp_path):
    skip_unless_sqlite(url)
    path = Path(url.database)
    path.write_bytes(b"no database at all" * 1000)
    status, _, error = run("backup")
    assert status == 2
    assert error.startswith(f"batchjob_stats_db: {path}: file is not a database; run ")
    assert not list(tmp_path.glob("kept/*"))


def test_backup_directory_that_is_a_file_is_refused(job_of_alice, run, tmp_path):
    (tmp_path / "kept").touch()
    status, _, error = run("backup")
    assert status == 2
    assert "expected a directory" in error


def test_restore(job_of_alice, run, url, tmp_path):
    assert run("backup")[0] == 0
    assert run("forget", "--user", "alice")[0] == 0
    assert recorded_users(url) == ["forgotten"]
    (copy,) = (tmp_path / "kept").iterdir()
    status, output, error = run("restore", copy)
    assert status == 0, error
    assert output.startswith(f"{url.database}: restored from {copy}")
    assert recorded_users(url) == ["alice"]


def test_restore_keeps_the_replaced_file(job_of_alice, run, url, tmp_path):
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    path = Path(url.database)
    path.chmod(0o640)
    assert run("forget", "--user", "alice")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    assert run("restore", copy)[0] == 0
    assert path.stat().st_mode & 0o777 == 0o640
    (replaced,) = path.parent.glob(f"{path.name}.replaced-*")
    with closing(sqlite3.connect(replaced)) as db:
        assert db.execute("SELECT username FROM job").fetchall() == [("forgotten",)]
    assert not path.with_name(path.name + "-wal").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_restore_by_root_keeps_the_owner(job_of_alice, run, url, tmp_path):
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    path = Path(url.database)
    os.chown(path, 12345, 12346)
    (copy,) = (tmp_path / "kept").iterdir()
    assert run("restore", copy)[0] == 0
    for each in (path, path.with_name(path.name + ".writer")):
        assert (each.stat().st_uid, each.stat().st_gid) == (12345, 12346)


def test_restore_without_an_existing_database(job_of_alice, run, url, tmp_path):
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    Path(url.database).unlink()
    assert run("restore", copy)[0] == 0
    assert recorded_users(url) == ["alice"]


OPEN_DATABASE_PROGRAM = """
import sys
from batchjob_stats_db.database.engine import parse_url, reader_engine
engine = reader_engine(parse_url(sys.argv[1]))
with engine.connect() as db:
    db.exec_driver_sql("SELECT count(*) FROM job")
    print("open", flush=True)
    sys.stdin.read()
"""


def test_restore_is_refused_while_the_database_is_open(job_of_alice, run, url, tmp_path):
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    with subprocess.Popen(
        [sys.executable, "-c", OPEN_DATABASE_PROGRAM, url.render_as_string(hide_password=False)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        status, _, error = run("restore", copy)
        holder.stdin.close()
    assert status == 1
    assert "stop server and poller first" in error
    if url.get_backend_name() == "sqlite":
        assert f"process {holder.pid} has it open" in error
    assert run("restore", copy)[0] == 0


def test_restore_is_refused_while_a_poller_runs(job_of_alice, run, url, tmp_path):
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    with writer_lock(url):
        status, _, error = run("restore", copy)
    assert status == 1
    assert "is already writing to it" in error


def test_restore_over_a_symbolic_link_is_refused(job_of_alice, run, url, tmp_path):
    """SQLite's other files are beside the real file, where open readers would be missed."""
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    real = Path(url.database).rename(tmp_path / "elsewhere.db")
    Path(url.database).symlink_to(real)
    status, _, error = run("restore", copy)
    assert status == 2
    assert f"a symbolic link; expected the file itself in db.url, {real}" in error
    assert recorded_users(url) == ["alice"]


@pytest.mark.parametrize("name", ["writer", "partial"])
def test_restore_by_root_follows_no_symbolic_link(job_of_alice, run, url, tmp_path, name):
    """The directory belongs to another user, who could link to a file of root."""
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    private = tmp_path / "private"
    private.write_text("root's")
    suffix = "writer" if name == "writer" else f"partial-{os.getpid()}"
    link = Path(f"{url.database}.{suffix}")
    link.unlink(missing_ok=True)
    link.symlink_to(private)
    status, _, error = run("restore", copy)
    assert (status, error.count("\n")) == (2, 1)
    assert private.read_text() == "root's"
    assert recorded_users(url) == ["alice"]


def test_second_restore_does_not_overwrite_a_replaced_file(
    job_of_alice, run, url, tmp_path, monkeypatch
):
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    monkeypatch.setattr("time.strftime", lambda *_: "20260101T000000Z")
    assert run("restore", copy)[0] == 0
    status, _, error = run("restore", copy)
    assert status == 2
    assert "replaced-20260101T000000Z: already exists" in error
    assert recorded_users(url) == ["alice"]


def test_file_with_a_write_ahead_log_is_not_a_backup(job_of_alice, run, url, tmp_path):
    """As `cp` leaves it of a database in use: part of it is in the log."""
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    Path(f"{copy}-wal").write_text("rows")
    status, _, error = run("restore", copy)
    assert status == 2
    assert "expected a copy that `backup` made" in error


def test_missing_postgresql_programs_are_reported(job_of_alice, run, url, tmp_path, monkeypatch):
    if url.get_backend_name() != "postgresql":
        pytest.skip("SQLite needs no programs")
    assert run("backup")[0] == 0
    (copy,) = (tmp_path / "kept").iterdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    another = tmp_path / "another.dump"
    for command, program in ((("backup", another), "pg_dump"), (("restore", copy), "pg_restore")):
        status, _, error = run(*command)
        assert status == 2
        assert error.startswith(f"batchjob_stats_db: {program}: No such file or directory")
        assert error.count("\n") == 1


def test_restore_of_another_file_is_refused(job_of_alice, run, url, tmp_path):
    (tmp_path / "other.db").write_text("no database " * 1000)
    status, _, error = run("restore", tmp_path / "other.db")
    assert status == 2
    assert error.count("\n") == 1
    assert recorded_users(url) == ["alice"]
    assert run("restore", tmp_path / "none.db")[2].endswith("none.db: no such file\n")


def test_replaced_database_file_is_reopened(job_of_alice, run, url, tmp_path, capsys):
    skip_unless_sqlite(url)
    assert run("backup")[0] == 0
    engine = reader_engine(url)

    def users_seen_by_engine():
        with engine.connect() as db:
            return [row.username for row in db.execute(sa.select(schema.job.c.username))]

    assert run("forget", "--user", "alice")[0] == 0
    assert users_seen_by_engine() == ["forgotten"]
    (copy,) = (tmp_path / "kept").iterdir()
    copy.rename(url.database)  # as with `mv` instead of `restore`
    for suffix in ("-wal", "-shm"):
        Path(url.database + suffix).unlink(missing_ok=True)
    assert users_seen_by_engine() == ["alice"]
    assert f"{url.database} was replaced; it is opened again" in capsys.readouterr().err
    Path(url.database).unlink()
    with pytest.raises(sa.exc.OperationalError):
        users_seen_by_engine()
    engine.dispose()


def test_time_of_the_newest_backup_is_a_metric(tmp_path):
    metrics = PollerMetrics()

    def backup_time():
        metrics.look_at_backups(str(tmp_path))
        name = "batchjob_stats_db_backup_timestamp_seconds"
        return metrics.registry.get_sample_value(name, {"directory": str(tmp_path)})

    assert backup_time() == 0
    (tmp_path / "batchjob-20260101T000000Z.db").touch()
    (tmp_path / "batchjob-20260102T000000Z.db.partial-7").touch()
    os.utime(tmp_path / "batchjob-20260101T000000Z.db", (1000, 1000))
    assert backup_time() == 1000
