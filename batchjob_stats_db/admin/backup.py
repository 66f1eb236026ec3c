"""Backups of a database in use, and copies of all rows from SQLite to PostgreSQL, or back."""

import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from batchjob.runtime.reason import reason
from batchjob_stats_db.database import schema
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
            run_client(url, "pg_dump", "--format=custom", f"--file={partial}")
        size = partial.stat().st_size
        fsync(partial)
        partial.rename(target)
        fsync(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"backup to {target}: {reason(error)}") from error
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    return size


def fsync(path: Path) -> None:
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
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as source:
        if sqlite3.sqlite_version_info >= (3, 27):
            source.execute("VACUUM INTO ?", (str(partial),))
        else:
            with closing(sqlite3.connect(partial)) as copy:
                source.backup(copy, pages=-1)
                copy.execute("PRAGMA journal_mode=DELETE")
    check_copy(partial)


def check_copy(path: Path) -> None:
    """Raise DatabaseError if an SQLite file is damaged."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as copy:
        (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise DatabaseError(f"{path}: the copy is damaged: {verdict}")


def run_client(url: URL, program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL on the database; raises DatabaseError with its last line.

    The password is in its environment, and on no command line.
    """
    environment = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    plain = url.set(drivername="postgresql", password=None)  # without SQLAlchemy's driver
    argv = [program, f"--dbname={plain.render_as_string(hide_password=False)}", *arguments]
    try:
        completed = subprocess.run(argv, env=environment, capture_output=True, check=False)  # noqa: S603 (argv, no shell)
    except OSError as error:
        message = f"{program}: {error.strerror}; expected PostgreSQL's client programs in PATH"
        raise DatabaseError(message) from error
    if completed.returncode:
        error_lines = completed.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DatabaseError(
            f"{program}: {error_lines[-1] if error_lines else completed.returncode}"
        )


_BACKUP_PATTERN = "batchjob-*"
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
        found = [path for path in directory.glob(_BACKUP_PATTERN) if path.suffix in _SUFFIXES]
        return max((path.stat().st_mtime for path in found), default=0.0)
    except OSError:
        return 0.0


def prune(directory: Path, keep: int) -> list[Path]:
    """Delete all but the newest `keep` backups, whose names sort by time."""
    found = sorted(path for path in directory.glob(_BACKUP_PATTERN) if path.suffix in _SUFFIXES)
    old = found[:-keep] if keep else []
    for path in old:
        path.unlink()
    return old


_ROWS_PER_BATCH = 2000


def copy_rows(source: Engine, target: Engine, on_progress: Callable[[float, str], None]) -> int:
    """Copy the rows of all tables in one transaction; returns their number.

    Both databases must have the current schema, and no other process may write to the source.
    `on_progress` is called with the progress (0..1) and a table's name. Raises DatabaseError if the
    target has rows.
    """
    tables = schema.metadata.sorted_tables
    with source.connect() as old, target.begin() as new:
        for table in tables:
            if _count_rows(new, table):
                raise DatabaseError(f"--to: expected an empty database, but {table.name} has rows")
        total = sum(_count_rows(old, table) for table in tables)
        done = 0
        for table in tables:
            # In primary-key order, so that a token comes after the one it was created with.
            query = sa.select(table).order_by(*table.primary_key)
            source_rows = old.execution_options(stream_results=True).execute(query)
            for rows in source_rows.mappings().partitions(_ROWS_PER_BATCH):
                new.execute(sa.insert(table), [dict(row) for row in rows])
                done += len(rows)
                on_progress(done / total, table.name)
            if new.dialect.name == "postgresql" and table.autoincrement_column is not None:
                _advance_sequence(new, table.autoincrement_column)
    return done


def _count_rows(db: Connection, table: sa.Table) -> int:
    return db.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def _advance_sequence(db: Connection, column: sa.Column[int]) -> None:
    """Set the sequence of a column to the largest number that was copied."""
    sequence = sa.func.pg_get_serial_sequence(column.table.name, column.name)
    largest = sa.func.max(column)
    following = sa.func.setval(sequence, sa.func.coalesce(largest, 1), largest.is_not(None))
    db.execute(sa.select(following))
