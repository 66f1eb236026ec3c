"""Rows of SQLite for many threads, and statements that end after their time.

Python's sqlite3 lets go of the interpreter's lock for each row. Where several threads fetch at
once, each row is a race between CPUs for that lock, and all take two to three times as long. So
they fetch one after the other; what comes before the first row (a sort, a sum) runs beside.
"""

import _sqlite3
import ctypes
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

_LONGEST_WAIT_SECONDS = 0.05  # nobody waits longer for what a disk is slow to give another
_fetching = threading.Lock()


class FetchingConnection(sqlite3.Connection):
    """A connection whose statements end after their time, and whose rows are fetched in turn.

    Those of `cursor().execute`, as SQLAlchemy asks; nothing else is to be asked of it.
    """

    statement_seconds = 30.0
    statement_ends = float("inf")
    all_end = float("inf")  # whatever is asked next

    def cursor(self, factory: Any = None) -> Any:
        """One that takes turns."""
        return super().cursor(factory or _Cursor)

    def watch(self, statement_seconds: float, instructions: int) -> None:
        """End statements after this time; between two looks at it SQLite's machine does so much."""
        self.statement_seconds = statement_seconds
        self.set_progress_handler(lambda: monotonic() > self.statement_ends, instructions)


class _Cursor(sqlite3.Cursor):
    connection: FetchingConnection

    def execute(self, statement: str, parameters: Any = (), /) -> Any:
        connection, now = self.connection, monotonic()
        if now > connection.all_end:
            raise sqlite3.OperationalError("interrupted")
        ends = now + connection.statement_seconds
        connection.statement_ends = min(ends, connection.all_end)
        return super().execute(statement, parameters)

    def fetchall(self) -> list[Any]:
        with turn():
            return super().fetchall()


@contextmanager
def turn() -> Iterator[None]:
    """To fetch rows in; who has one does not ask for another, and it may take its own time."""
    mine = _fetching.acquire(timeout=_LONGEST_WAIT_SECONDS)
    try:
        yield
    finally:
        if mine:
            _fetching.release()


def is_free() -> bool:
    """Whether nobody fetches rows."""
    return not _fetching.locked()


_MULTI_THREAD = 2  # SQLITE_CONFIG_MULTITHREAD


def one_thread_for_each() -> bool:
    """Tell SQLite that no two threads use a connection at the same time, which a pool sees to.

    It takes a lock for each value of a row otherwise: a sixth of the time that a page of jobs
    takes. To be called in a process that has no connection yet, as SQLite has to be started anew
    (https://www.sqlite.org/threadsafe.html). False: it cannot be told, in a Python that has its
    own inside.
    """
    try:
        library = ctypes.CDLL(_sqlite3.__file__)  # which names the one that it is linked to
        library.sqlite3_shutdown()
        taken: int = library.sqlite3_config(_MULTI_THREAD)
        library.sqlite3_initialize()
    except (AttributeError, OSError):
        return False
    return taken == sqlite3.SQLITE_OK
