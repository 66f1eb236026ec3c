"""Replace the database with a backup."""

import fcntl
import os
import shutil
import sqlite3
import struct
import time
from contextlib import closing, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from batchjob.runtime.reason import reason
from batchjob_stats_db.admin.backup import check_copy, fsync, run_client
from batchjob_stats_db.database import revision, schema
from batchjob_stats_db.database.engine import (
    DatabaseError,
    WriterBusyError,
    writer_engine,
    writer_lock,
)

# A process that has a database open in WAL mode holds a lock on this byte of its -shm file (the
# "dead man's switch", UNIX_SHM_DMS in SQLite's os_unix.c).
_SHM_OPEN_BYTE = 128
_FLOCK = "hhqqi"  # struct flock of x86-64 and ARM64: type, whence, start, length, pid


def restore(url: URL, source: Path) -> Path | None:
    """Replace the database by a backup; returns where the previous one is now, if any.

    Refuses while a poller or server uses the database (WriterBusyError). Raises DatabaseError.
    """
    if not source.is_file():
        raise DatabaseError(f"{source}: no such file")
    if url.get_backend_name() != "sqlite":
        _restore_postgresql(url, source)
        return None
    path = Path(url.database or "")
    if path.is_symlink():  # processes that have it open lock files next to the real file
        reason_text = f"a symbolic link; expected the file itself in db.url, {path.resolve()}"
        raise DatabaseError(f"{path}: {reason_text}")
    with writer_lock(url):
        return _restore_sqlite(path, source)


def _restore_sqlite(path: Path, source: Path) -> Path | None:
    _check_not_open(path)
    _check_backup(source)
    owner = path if path.exists() else path.parent
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        _copy_file(source, partial)
        check_copy(partial)
        _give_to_owner(partial, owner, mode=path.stat().st_mode if path.exists() else 0o600)
        before = _rename_replaced(path)
        partial.rename(path)
        fsync(path)
        fsync(path.parent)
        return before
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"restore of {source}: {reason(error)}") from error
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
        lock = path.with_name(f"{path.name}.writer")
        # Root may have created it for a database that belongs to another user.
        with suppress(OSError):
            _give_to_owner(lock, owner if owner.exists() else path, lock.stat().st_mode)


def _check_not_open(path: Path) -> None:
    """Raise if a process has the database open: it would continue with the deleted file."""
    try:
        descriptor = os.open(f"{path}-shm", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # no process has it open in WAL mode
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _SHM_OPEN_BYTE, 1, 0)
        lock_type, *_, holder = struct.unpack(
            _FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, request)
        )
    finally:
        os.close(descriptor)
    if lock_type != fcntl.F_UNLCK:
        raise WriterBusyError(
            f"{path}: process {holder} has it open; stop server and poller first: "
            "systemctl stop batchjob_stats_server batchjob_stats_db"
        )


def _check_backup(source: Path) -> None:
    """Raise for a file that is not our database, only a part of it, or from a newer version."""
    log = source.with_name(f"{source.name}-wal")
    if log.exists() and log.stat().st_size:
        raise DatabaseError(f"{source}: expected a copy that `backup` made, without {log.name}")
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro&immutable=1", uri=True)) as db:
            found = db.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise DatabaseError(f"{source}: expected a copy that `backup` made: {error}") from error
    if found and found[0] > schema.REVISION:
        raise revision.newer_version_error(found[0], str(source))


def _copy_file(source: Path, target: Path) -> None:
    """Copy to a new private file: job records are confidential, and the directory is not root's."""
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(made, "wb") as copy, source.open("rb") as file:
        shutil.copyfileobj(file, copy)


def _rename_replaced(path: Path) -> Path | None:
    """Rename the existing database, including the contents of its -wal file."""
    if not path.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    before = path.with_name(f"{path.name}.replaced-{stamp}")
    if before.exists():
        raise DatabaseError(f"{before}: already exists")
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path, timeout=5)) as db:
        # Fails for a damaged database, which is then kept as it is.
        db.execute("PRAGMA journal_mode=DELETE")
    path.rename(before)
    for end in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(before.with_name(before.name + end))
    return before


def _give_to_owner(path: Path, owner: Path, mode: int) -> None:
    status = owner.stat()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fchmod(descriptor, mode & 0o777)
    finally:
        os.close(descriptor)


_OTHER_SESSIONS = sa.text(
    "SELECT pid, usename, application_name FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


def _restore_postgresql(url: URL, source: Path) -> None:
    engine = writer_engine(url)
    try:
        with engine.connect() as db:
            other = db.execute(_OTHER_SESSIONS).first()
    finally:
        engine.dispose()
    if other:
        raise WriterBusyError(
            f"{url.database}: backend {other.pid} of {other.usename} is connected to it; "
            "stop server and poller first"
        )
    run_client(
        url, "pg_restore", "--clean", "--if-exists", "--no-owner", "--exit-on-error",
        "--single-transaction", str(source),
    )  # fmt: skip
