"""Rows of SQLite for many threads.

Python's sqlite3 lets go of the interpreter's lock for each row. Where several threads fetch at
once, each row is a race between CPUs for that lock, and all take two to three times as long. So
they fetch one after the other; what comes before the first row (a sort, a sum) runs beside.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LONGEST_WAIT_SECONDS = 0.05  # nobody waits longer for what a disk is slow to give another
_fetching = threading.Lock()


class FetchingConnection(sqlite3.Connection):
    """A connection whose rows are fetched in turn with those of others."""

    def cursor(self, factory: Any = None) -> Any:
        """One that takes turns."""
        return super().cursor(factory or _Cursor)


class _Cursor(sqlite3.Cursor):
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
