"""The doors to a database: one that writes, one that only reads.

SQLite in WAL mode on a local disk, or PostgreSQL through psycopg 3. Nothing else in the package
knows which of the two it talks to, but for `dialect.name` where SQL itself differs.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url

from batchjob_stats_db.fetching import FetchingConnection
from batchjob_stats_db.filesystem import NETWORK, type_of


class DatabaseError(Exception):
    """The database cannot be used; the text is one line for the person who runs the program."""


class WriterBusyError(DatabaseError):
    """Another process writes job records into the SQLite file."""


_READERS_CACHE_KIBIBYTES = 131072  # beside it the kernel keeps the file's pages, for all
_LEAST_CACHE_KIBIBYTES = 4096
_QUICK_CACHE_KIBIBYTES = 16384

_EXPECTED = "db.url: expected sqlite:///PATH or postgresql://..."


def parse(url: str, password_file: str = "") -> URL:
    """Check a database URL; the password may come from a file, so that it is on no command line."""
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError as error:
        raise DatabaseError(f"{_EXPECTED}, got {url!r}") from error
    kind = parsed.drivername.partition("+")[0]
    if kind == "postgresql":
        if password_file:
            parsed = parsed.set(password=_secret(password_file))
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername != "sqlite":
        raise DatabaseError(f"{_EXPECTED}, not {kind}")
    if not parsed.database or parsed.database == ":memory:":
        raise DatabaseError(
            "db.url: expected the path of a file: sqlite:////var/lib/batchjob/jobs.db"
        )
    return parsed


def _secret(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"db.password-file: {path}: {error}") from error


def writer(url: URL, *, create: bool = False) -> Engine:
    """Open the database for reading and writing; with SQLite `create` makes a missing file."""
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, pool_pre_ping=True)
    path = _local(url)
    if not create and not os.path.exists(path):
        raise DatabaseError(f"{path}: no such database; `batchjob_stats_db migrate` makes it")
    engine = sa.create_engine(url, connect_args={"timeout": 30})
    sa.event.listen(engine, "connect", _set_up_writer)
    # A deferred transaction that turns into a writer fails at once with SQLITE_BUSY, whatever the
    # time-out (https://www.sqlite.org/lang_transaction.html); so take the lock at the beginning.
    sa.event.listen(engine, "begin", _begin_immediate)
    return engine


def reader(url: URL, statement_seconds: float = 30.0, connections: int = 5) -> Engine:
    """Open the database so that nothing can be written; a statement ends after its time.

    At most so many connections are open at once; whoever comes then waits for one.
    """
    # The last one that was used has the pages at hand that everybody asks for.
    pool: dict[str, Any] = {
        "pool_size": connections, "max_overflow": 0, "pool_use_lifo": True,
    }  # fmt: skip
    if url.get_backend_name() != "sqlite":
        options = (
            "-c default_transaction_read_only=on "
            f"-c statement_timeout={max(1, int(statement_seconds * 1000))}"
        )
        return sa.create_engine(url, pool_pre_ping=True, connect_args={"options": options}, **pool)
    cache = max(_LEAST_CACHE_KIBIBYTES, _READERS_CACHE_KIBIBYTES // connections)
    return _sqlite_reader(url, _Reading(statement_seconds, cache), pool)


def quick_reader(url: URL, seconds: float) -> Engine:
    """One connection to SQLite, for what is looked up within so many seconds or not at all.

    What takes longer, or would have to wait for a lock, fails: all statements from the moment that
    the connection is taken until it is given back.
    """
    reading = _Reading(seconds, _QUICK_CACHE_KIBIBYTES, lock_seconds=0, instructions=200)
    pool = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0}
    engine = _sqlite_reader(url, reading, pool)

    def taken(raw: FetchingConnection, _record: Any, _proxy: Any) -> None:
        raw.all_end = time.monotonic() + seconds

    sa.event.listen(engine, "checkout", taken)
    return engine


class _Reading(NamedTuple):
    """How a connection reads from SQLite."""

    statement_seconds: float
    cache_kibibytes: int
    lock_seconds: float = 5.0
    instructions: int = 10_000  # of SQLite's machine, between two looks at the time


def _sqlite_reader(url: URL, reading: _Reading, pool: Mapping[str, Any]) -> Engine:
    path = _local(url)
    if not os.path.exists(path):
        raise DatabaseError(f"{path}: no such database; `batchjob_stats_db migrate` makes it")
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(
            f"file:{quoted}?mode=ro",
            uri=True,
            timeout=reading.lock_seconds,
            check_same_thread=False,
            factory=FetchingConnection,
        ),
        poolclass=sa.pool.QueuePool,
        **pool,
    )
    sa.event.listen(engine, "connect", _set_up_reader(reading))
    return engine


def _local(url: URL) -> str:
    path = str(Path(url.database or "").absolute())
    kind = type_of(os.path.dirname(path))
    if kind in NETWORK:
        raise DatabaseError(
            f"{path}: on {kind}, where SQLite's locks and shared memory do not hold between hosts; "
            "use a local disk or PostgreSQL"
        )
    return path


def _set_up_writer(raw: Any, _record: Any) -> None:
    raw.isolation_level = None  # transactions begin where _begin_immediate says
    for pragma in (
        "page_size=8192",  # of a new file: job rows are wide, and a third faster written so
        "journal_mode=WAL",  # readers never wait for the poller
        "synchronous=NORMAL",  # in WAL a power cut may lose the last commits, never consistency
        "wal_autocheckpoint=8192",  # 64 MiB: a backfill writes the same index pages often
        "foreign_keys=ON",
        "cache_size=-65536",  # 64 MiB
        "temp_store=MEMORY",
    ):
        raw.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _set_up_reader(reading: _Reading) -> Any:
    def set_up(raw: FetchingConnection, _record: Any) -> None:
        cache = f"cache_size=-{reading.cache_kibibytes}"
        for pragma in ("query_only=ON", cache, "temp_store=MEMORY"):
            raw.execute(f"PRAGMA {pragma}")
        raw.watch(reading.statement_seconds, reading.instructions)

    return set_up


@contextmanager
def only_writer(url: URL) -> Iterator[None]:
    """Be the one process that writes job records into an SQLite file.

    PostgreSQL needs no such lock: there each write takes an advisory one for its cluster.
    Raises WriterBusyError naming the process that has the lock, DatabaseError.
    """
    if url.get_backend_name() != "sqlite":
        yield
        return
    path = _local(url) + ".writer"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise DatabaseError(f"{path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise WriterBusyError(
                f"{url.database}: process {holder or 'unknown'} writes to it already; "
                "SQLite has one writer"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # the kernel gives the lock back, after a SIGKILL too
