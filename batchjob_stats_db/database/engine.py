"""Database engines: one read-write, one read-only.

SQLite in WAL mode on a local disk, or PostgreSQL through psycopg 3. The rest of the package does
not depend on the choice, except through `dialect.name` where SQL itself differs.
"""

import fcntl
import functools
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url

from batchjob.runtime.settings import UnavailableError
from batchjob.secret_files import SecretFileError, read_secret
from batchjob_stats_db.database.filesystem import NETWORK_TYPES, filesystem_type

log = logging.getLogger(__name__)


class DatabaseError(Exception):
    """The database cannot be used; the text is one line for the person who runs the program."""


class DatabaseUnavailableError(DatabaseError, UnavailableError):
    """The database is down, starting, locked or in use by another process, which may pass."""


class WriterBusyError(DatabaseUnavailableError):
    """Another process writes job records into the SQLite file."""


_READERS_CACHE_KIBIBYTES = 131072  # in addition, the kernel caches the file's pages for all readers
_LEAST_CACHE_KIBIBYTES = 4096

_CONNECT_SECONDS = 10
_TRANSFER_SECONDS = 5.0  # for the answer to a statement that took as long as it may

_EXPECTED_URL = "expected sqlite:///PATH or postgresql://..."


def parse_url(url: str, password_file: str = "") -> URL:
    """Parse a database URL; the password may come from a file, to keep it off the command line.

    Raises DatabaseError, which names the option that is wrong.
    """
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError as error:
        raise DatabaseError(f"db.url: {_EXPECTED_URL}, got {url!r}") from error
    kind = parsed.drivername.partition("+")[0]
    if kind == "postgresql":
        try:
            secret = read_secret(password_file) if password_file else parsed.password
        except SecretFileError as error:
            raise DatabaseError(f"db.password-file: {error}") from error
        return parsed.set(drivername="postgresql+psycopg", password=secret)
    if parsed.drivername != "sqlite":
        raise DatabaseError(f"db.url: {_EXPECTED_URL}, not {kind}")
    if not parsed.database or parsed.database == ":memory:":
        raise DatabaseError(
            "db.url: expected the path of a file: sqlite:////var/lib/batchjob/jobs.db"
        )
    return parsed


def writer_engine(url: URL, *, create: bool = False, answer_seconds: float = 3600.0) -> Engine:
    """Open the database for reading and writing; with SQLite, `create` creates a missing file.

    PostgreSQL may take `answer_seconds` for a statement, or as long as it needs to create tables.
    """
    if url.get_backend_name() != "sqlite":
        engine = sa.create_engine(url, pool_pre_ping=True)
        _limit_waiting(engine, float("inf") if create else answer_seconds)
        return engine
    path = _local_path(url)
    if create:
        _create_file(path)
    _require_file(path)
    # mode=rw: if the database has been removed in the meantime, do not create an empty file.
    engine = sa.create_engine(url, creator=_opener(path, "rw", 30))
    _reopen_when_replaced(engine, path)
    sa.event.listen(engine, "connect", _set_up_writer)
    # A deferred transaction that becomes a write transaction fails immediately with SQLITE_BUSY,
    # whatever the timeout (https://www.sqlite.org/lang_transaction.html), so take the lock at the
    # beginning.
    sa.event.listen(engine, "begin", _begin_immediate)
    return engine


def _create_file(path: str) -> None:
    """Create an empty file that only its user may read.

    SQLite gives its -wal and -shm files the mode of the database (os_unix.c, findCreateFileMode).
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise DatabaseError(f"{path}: {error.strerror}") from error


def _require_file(path: str) -> None:
    if not os.path.exists(path):
        raise DatabaseError(f"{path}: no such database; create it with `batchjob_stats_db migrate`")


def reader_engine(url: URL, statement_seconds: float = 30.0, connections: int = 5) -> Engine:
    """Open the database read-only; a statement is cancelled after its time.

    The number of connections is limited; further requests wait for a free one.
    """
    # LIFO: the most recently used connection has the popular pages in its cache.
    pool: dict[str, Any] = {"pool_size": connections, "max_overflow": 0, "pool_use_lifo": True}
    if url.get_backend_name() != "sqlite":
        options = f"-c statement_timeout={max(1, int(statement_seconds * 1000))}"
        engine = sa.create_engine(
            url, pool_pre_ping=True, connect_args={"options": options},
            pool_timeout=_CONNECT_SECONDS, **pool,
        )  # fmt: skip
        _limit_waiting(engine, statement_seconds + _TRANSFER_SECONDS)
        sa.event.listen(engine, "connect", _set_read_only)
        return engine
    path = _local_path(url)
    _require_file(path)
    opener = _opener(path, "ro", 5)
    engine = sa.create_engine(url, creator=opener, poolclass=sa.pool.QueuePool, **pool)
    cache = max(_LEAST_CACHE_KIBIBYTES, _READERS_CACHE_KIBIBYTES // connections)

    def set_up(raw: sqlite3.Connection, record: Any) -> None:
        known = record.info
        known.update({_UNCHANGED: {}, _STATEMENT_ENDS: float("inf"), _SECONDS: statement_seconds})
        for pragma in ("query_only=ON", f"cache_size=-{cache}", "temp_store=MEMORY"):
            _set_pragma(raw, pragma)
        # Check the time every 10,000 instructions of SQLite's virtual machine.
        raw.set_progress_handler(lambda: time.monotonic() > known[_STATEMENT_ENDS], 10_000)

    _reopen_when_replaced(engine, path)
    sa.event.listen(engine, "connect", set_up)
    sa.event.listen(engine, "before_cursor_execute", _start_time_limit)
    return engine


# What is kept of a read-only connection to SQLite.
_UNCHANGED, _STATEMENT_ENDS, _SECONDS = "unchanged reads", "end of the statement", "time limit"
_MAX_UNCHANGED = 1000


def _start_time_limit(db: Connection, *_: Any) -> None:
    db.info[_STATEMENT_ENDS] = time.monotonic() + db.info[_SECONDS]


def read_if_changed(
    db: Connection, statement: sa.Select[Any], **parameters: object
) -> Sequence[sa.Row[Any]]:
    """The rows of a short statement; those read before, while the SQLite database is unchanged.

    Each request asks who its caller is, and most of that time is SQLAlchemy's. SQLite counts the
    changes made through other connections (https://www.sqlite.org/pragma.html#pragma_data_version),
    so nothing outdated is returned. The statement must be the same object each time.
    """
    known: dict[object, Any] | None = db.info.get(_UNCHANGED)
    raw = db.connection.driver_connection
    if known is None or raw is None:  # PostgreSQL, or a connection that writes
        return db.execute(statement, parameters).all()
    _start_time_limit(db)  # of which SQLAlchemy's event does not tell
    try:
        (version,) = raw.execute("PRAGMA data_version").fetchone()
    except sqlite3.Error as error:
        raise sa.exc.OperationalError("PRAGMA data_version", None, error) from error
    if version != known.get("version") or len(known) > _MAX_UNCHANGED:
        known.clear()
        known["version"] = version
    key = statement, tuple(parameters.values())
    if key not in known:
        known[key] = db.execute(statement, parameters).all()
    rows: Sequence[sa.Row[Any]] = known[key]
    return rows


class ChangeCounter:
    """Tells an event loop whether a SQLite database has changed, without waiting for anybody."""

    def __init__(self, url: URL) -> None:
        self._path = _local_path(url) if url.get_backend_name() == "sqlite" else ""
        self._file: tuple[int, int] | None = None
        self._raw: sqlite3.Connection | None = None

    def count(self) -> Hashable:
        """Equals an earlier count only if nothing has changed since; None: nobody can tell."""
        if not self._path:
            return None
        try:
            file = _file_identity(self._path)
            if self._raw is None or file != self._file:
                self.close()
                self._raw, self._file = _opener(self._path, "ro", 0)(), file
            return self._file, self._raw.execute("PRAGMA data_version").fetchone()
        except (OSError, sqlite3.Error):
            return None

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None


LazyConnection = Callable[[], Connection]


@contextmanager
def lazy_connection(engine: Engine) -> Iterator[LazyConnection]:
    """A connection for several look-ups, opened by the first of them."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(engine.connect()))


def _limit_waiting(engine: Engine, answer_seconds: float) -> None:
    """Limit how long a client waits for PostgreSQL, which may be stopped, hang or be unreachable.

    The server keeps `statement_timeout` itself, and TCP notices only that a host is gone.
    """
    limits = {
        "connect_timeout": _CONNECT_SECONDS, "tcp_user_timeout": 60_000,
        "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
    }  # fmt: skip  # https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS

    def connect(_dialect: Any, _record: Any, args: list[Any], parameters: dict[str, Any]) -> Any:
        from batchjob_stats_db.database.postgresql import LimitedConnection

        connection = LimitedConnection.connect(*args, **{**limits, **parameters})
        connection.answer_seconds = answer_seconds
        return connection

    sa.event.listen(engine, "do_connect", connect)


def _set_read_only(raw: Any, _record: Any) -> None:
    """Make a PostgreSQL connection read-only, after connecting.

    With a connection option instead, a URL with several hosts and target_session_attrs=read-write
    would find no server: libpq would mistake the primary for a standby.
    """
    raw.read_only = True


def _reopen_when_replaced(engine: Engine, path: str) -> None:
    """Reopen connections to a file that has been replaced since they were opened."""

    def remember_file(_raw: Any, record: Any) -> None:
        record.info["file"] = _file_identity(path)

    def check_file(_raw: Any, record: Any, _proxy: Any) -> None:
        if record.info["file"] != _file_identity(path):
            log.warning("%s was replaced; it is opened again", path)
            raise sa.exc.InvalidatePoolError(f"{path} was replaced")

    sa.event.listen(engine, "connect", remember_file)
    sa.event.listen(engine, "checkout", check_file)


def _opener(path: str, mode: str, timeout: float) -> Callable[[], sqlite3.Connection]:
    """What opens the file for connections of any thread."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    options = {"uri": True, "check_same_thread": False}
    return functools.partial(
        sqlite3.connect, f"file:{quoted}?mode={mode}", timeout=timeout, **options
    )


def _file_identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _local_path(url: URL) -> str:
    path = str(Path(url.database or "").absolute())
    kind = filesystem_type(os.path.dirname(os.path.realpath(path)))
    if kind in NETWORK_TYPES:
        raise DatabaseError(
            f"{path}: on {kind}, where SQLite's locks and shared memory do not hold between hosts; "
            "use a local disk or PostgreSQL"
        )
    return path


def _set_up_writer(raw: Any, _record: Any) -> None:
    raw.isolation_level = None  # _begin_immediate starts the transactions
    for pragma in (
        "page_size=8192",  # for new files: job rows are wide, and are written a third faster
        "journal_mode=WAL",  # readers never wait for the poller
        # A long-running reader makes the WAL grow; it is truncated to this size afterwards.
        "journal_size_limit=67108864",
        # In WAL mode, a power failure may lose the last commits but not consistency.
        "synchronous=NORMAL",
        "wal_autocheckpoint=8192",  # 64 MiB: a backfill writes the same index pages repeatedly
        "foreign_keys=ON",
        "cache_size=-49152",  # 48 MiB
        "temp_store=MEMORY",
    ):
        _set_pragma(raw, pragma)


def _set_pragma(raw: sqlite3.Connection, pragma: str) -> None:
    try:
        raw.execute(f"PRAGMA {pragma}")
    except UnicodeDecodeError as error:  # SQLite's message quotes the damaged name of a table
        raise sqlite3.DatabaseError("malformed database schema") from error


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def writer_lock(url: URL) -> Iterator[None]:
    """Hold the lock for writing job records into an SQLite file: only one process may write.

    PostgreSQL needs no such lock: there each write takes an advisory lock for its cluster. Raises
    WriterBusyError naming the process that has the lock, and DatabaseError.
    """
    if url.get_backend_name() != "sqlite":
        yield
        return
    path = _local_path(url) + ".writer"
    # Root may run this in another user's directory, so do not follow a link to one of root's files.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o640)
    except OSError as error:
        raise DatabaseError(f"{path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise WriterBusyError(
                f"{url.database}: process {holder or 'unknown'} is already writing to it; "
                "SQLite allows one writer"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # the kernel releases the lock, even after a SIGKILL
