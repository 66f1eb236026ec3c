"""Copy the database while it is in use."""

import os
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy.engine import URL

from batchjob_stats_db.engine import DatabaseError


def backup(url: URL, target: Path) -> int:
    """Write a whole and checked copy to `target`, which appears when it is complete; its size.

    SQLite: a database file in rollback mode. PostgreSQL: an archive for pg_restore.
    """
    if target.exists():
        raise DatabaseError(f"{target}: exists already")
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        # Private from its first byte: job records are personal data.
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if url.get_backend_name() == "sqlite":
            _copy_sqlite(url.database or "", partial)
        else:
            _dump_postgresql(url, partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        partial.rename(target)
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"backup to {target}: {error}") from error
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    return size


def _copy_sqlite(path: str, partial: Path) -> None:
    """One step under a read lock of WAL: writers go on, and nothing has to begin anew."""
    if not Path(path).exists():
        raise DatabaseError(f"{path}: no such database")
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as source:
        if sqlite3.sqlite_version_info >= (3, 27):
            source.execute("VACUUM INTO ?", (str(partial),))
        else:
            with closing(sqlite3.connect(partial)) as copy:
                source.backup(copy, pages=-1)
                copy.execute("PRAGMA journal_mode=DELETE")
    with closing(sqlite3.connect(f"file:{partial}?mode=ro", uri=True)) as copy:
        (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise DatabaseError(f"{path}: the copy is damaged: {verdict}")


def _dump_postgresql(url: URL, partial: Path) -> None:
    password = url.password
    plain = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment = {**os.environ, **({"PGPASSWORD": str(password)} if password else {})}
    argv = ["pg_dump", "--format=custom", f"--file={partial}", f"--dbname={plain}"]
    done = subprocess.run(argv, env=environment, capture_output=True, check=False)  # noqa: S603 (argv, no shell)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DatabaseError(f"pg_dump: {said[-1] if said else done.returncode}")


def prune(directory: Path, pattern: str, keep: int) -> list[Path]:
    """Delete all but the newest `keep` files of a pattern whose names sort by time."""
    old = sorted(directory.glob(pattern))[:-keep] if keep else []
    for path in old:
        path.unlink()
    return old
