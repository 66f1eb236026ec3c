"""Rows of SQLite for many threads.

Python's sqlite3 lets go of the interpreter's lock for each row. Where several threads fetch at
once, each row is a race between CPUs for that lock, and all take two to three times as long. So
they fetch one after the other; what comes before the first row (a sort, a sum) runs beside.
"""

import _sqlite3
import ctypes
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

_LONGEST_WAIT_SECONDS = 0.05  # nobody waits longer for what a disk is slow to give another
_fetching = threading.Lock()


class FetchingConnection(sqlite3.Connection):
    """A connection whose statements end after their time, and whose rows are fetched in turn."""

    statement_seconds = 30.0
    statement_ends = float("inf")

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
        connection = self.connection
        connection.statement_ends = monotonic() + connection.statement_seconds
        return super().execute(statement, parameters)

    def fetchall(self) -> list[Any]:
        with turn():
            return super().fetchall()


@contextmanager
def turn() -> Iterator[None]:
    """To fetch rows in; who has one does not ask for another."""
    mine = _fetching.acquire(timeout=_LONGEST_WAIT_SECONDS)
    try:
        yield
    finally:
        if mine:
            _fetching.release()


_MULTI_THREAD = 2  # SQLITE_CONFIG_MULTITHREAD


def one_thread_for_each() -> None:
    """Tell SQLite that no two threads use a connection at the same time, which a pool sees to.

    It takes a lock for each value of a row otherwise: a sixth of the time that a page of jobs
    takes. To be called in a process that has no connection yet, as SQLite has to be started anew
    (https://www.sqlite.org/threadsafe.html). Nothing changes where it cannot be reached, in a
    Python that has its own.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(_sqlite3.__file__)  # which names the one that it is linked to
        library.sqlite3_shutdown()
        library.sqlite3_config(_MULTI_THREAD)
        library.sqlite3_initialize()
