"""Backups of a database in use."""

import os
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy.engine import URL

from batchjob.runtime.reason import reason
from batchjob_stats_db.database.engine import DatabaseError


def backup(url: URL, target: Path) -> int:
    """Write a complete, checked copy to `target`, which appears when it is complete; returns its
    size.

    SQLite: a database file in rollback mode. PostgreSQL: an archive for pg_restore.
    """
    if target.exists():
        raise DatabaseError(f"{target}: already exists")
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        # Private from its first byte: job records are personal data.
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if url.get_backend_name() == "sqlite":
            _copy_sqlite(url.database or "", partial)
        else:
            _run_pg_dump(url, partial)
        size = partial.stat().st_size
        _fsync(partial)
        partial.rename(target)
        _fsync(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"backup to {target}: {reason(error)}") from error
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    return size


def _fsync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_sqlite(path: str, partial: Path) -> None:
    """Copy in one step under a read lock of WAL: writers go on, and nothing has to restart."""
    if not Path(path).exists():
        raise DatabaseError(f"{path}: no such database")
    with (
        closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as source,
        closing(sqlite3.connect(partial)) as copy,
    ):
        source.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")
        (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise DatabaseError(f"{path}: the copy is damaged: {verdict}")


def _run_pg_dump(url: URL, partial: Path) -> None:
    """Write an archive; the password is in the environment, and on no command line."""
    environment = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    plain = url.set(drivername="postgresql", password=None)  # without SQLAlchemy's driver
    argv = ["pg_dump", "--format=custom", f"--file={partial}"]
    argv.append(f"--dbname={plain.render_as_string(hide_password=False)}")
    try:
        completed = subprocess.run(argv, env=environment, capture_output=True, check=False)  # noqa: S603 (argv, no shell)
    except OSError as error:
        message = f"pg_dump: {error.strerror}; expected PostgreSQL's client programs in PATH"
        raise DatabaseError(message) from error
    if completed.returncode:
        error_lines = completed.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DatabaseError(f"pg_dump: {error_lines[-1] if error_lines else completed.returncode}")


_SUFFIXES = (".db", ".dump")


def choose_target(target: Path, kind: str, stamp: str) -> tuple[Path, Path | None]:
    """Choose the file to write, and its directory if `target` is a directory of backups.

    A target that ends in .db or .dump is a file; any other is a directory, which is created if
    missing.
    """
    if target.suffix in _SUFFIXES and not target.is_dir():
        return target, None
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise DatabaseError(
            f"{target}: a file; expected a directory, or a name that ends in .db or .dump"
        ) from error
    except OSError as error:
        raise DatabaseError(f"{target}: {error.strerror}") from error
    return target / f"batchjob-{stamp}.{kind}", target


def newest_time(directory: Path) -> float:
    """When the newest backup in a directory was completed (epoch seconds), 0 if there is none."""
    try:
        return max((path.stat().st_mtime for path in _backups(directory)), default=0.0)
    except OSError:
        return 0.0


def prune(directory: Path, keep: int) -> list[Path]:
    """Delete all but the newest `keep` backups, whose names sort by time."""
    old = sorted(_backups(directory))[:-keep] if keep else []
    for path in old:
        path.unlink()
    return old


def _backups(directory: Path) -> list[Path]:
    return [path for path in directory.glob("batchjob-*") if path.suffix in _SUFFIXES]
