"""Backups."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import reader_engine
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


def test_missing_postgresql_programs_are_reported(job_of_alice, run, url, tmp_path, monkeypatch):
    if url.get_backend_name() != "postgresql":
        pytest.skip("SQLite needs no programs")
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, error = run("backup")
    assert status == 2
    assert error.startswith("batchjob_stats_db: pg_dump: No such file or directory")
    assert error.count("\n") == 1


def test_archive_of_postgresql_is_restored_by_its_own_program(job_of_alice, run, url, tmp_path):
    if url.get_backend_name() != "postgresql":
        pytest.skip("an SQLite backup is a database")
    assert run("backup")[0] == 0
    assert run("forget", "--user", "alice")[0] == 0
    (archive,) = (tmp_path / "kept").iterdir()
    options = ["--clean", "--if-exists", "--no-owner", "--exit-on-error", "--single-transaction"]
    target = url.set(drivername="postgresql").render_as_string(hide_password=False)
    subprocess.run(["pg_restore", f"--dbname={target}", *options, str(archive)], check=True)
    assert recorded_users(url) == ["alice"]


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
    copy.rename(url.database)
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
