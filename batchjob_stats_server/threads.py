"""The number of threads that answer requests, and which of them run one after the other."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, TypeVar

from sqlalchemy.engine import URL

from batchjob_stats_server.turns import Turns

LONGEST_WAIT_SECONDS = 0.1
_FILE_THREADS = 8

T = TypeVar("T")


class SerialExecutor:
    """Runs short work of different threads one after the other.

    Work that takes longer than LONGEST_WAIT_SECONDS, or is inside `while_waiting`, does not delay
    others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()  # `holds`: whether this thread holds the lock

    def is_busy(self) -> bool:
        """Whether work is in progress for which others wait."""
        return self._lock.locked()

    def run(self, work: Callable[[], T]) -> T:
        """Do the work in this thread."""
        if self._holds_lock():
            return work()
        self._acquire()
        try:
            return work()
        finally:
            self._release()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Release the lock while this thread waits for something else."""
        held = self._holds_lock()
        self._release()
        try:
            yield
        finally:
            if held:
                self._acquire()

    def _holds_lock(self) -> bool:
        return getattr(self._thread, "holds", False)

    def _acquire(self) -> None:
        self._thread.holds = self._lock.acquire(timeout=LONGEST_WAIT_SECONDS)

    def _release(self) -> None:
        if self._holds_lock():
            self._thread.holds = False
            self._lock.release()


class Threads(NamedTuple):
    """Maximum numbers of threads; each has a connection of its own to the database.

    Whatever hangs, one user does not take all threads of a kind.
    """

    light: Turns
    heavy: Turns  # for expensive queries, so that others need not wait for them
    files: Turns  # for files of users, whose file system may hang; no connection
    serial: SerialExecutor | None = None  # None: short queries run in parallel

    def connections(self) -> int:
        """Maximum number of connections to the database: one per thread."""
        return self.light.capacity() + self.heavy.capacity()

    def run_short(self, work: Callable[[], T]) -> T:
        """Do short work in this thread, after that of others if it must not run in parallel."""
        return self.serial.run(work) if self.serial else work()

    def while_waiting(self) -> AbstractContextManager[None]:
        """Entered by short work while it waits for something other than the database."""
        return self.serial.while_waiting() if self.serial else nullcontext()


def plan_threads(url: URL, maximum: int) -> Threads:
    """At most this many threads, some of which are reserved for either kind of request.

    SQLite works in this process, and Python's sqlite3 releases the interpreter's lock at each row
    (_sqlite/cursor.c, Py_BEGIN_ALLOW_THREADS). If several threads read, each waits for the others
    at every row, which takes twice as long as reading one after the other.
    """
    sqlite = url.get_backend_name() == "sqlite"
    heavy = maximum // 2
    if sqlite:
        heavy = min(heavy, len(os.sched_getaffinity(0)) + 1)
    heavy = max(heavy, 1)
    return Threads(
        _queue(max(maximum - heavy, 1), "the server"),
        _queue(heavy, "the database"),
        _queue(_FILE_THREADS, "the file system"),
        SerialExecutor() if sqlite else None,
    )


def _queue(threads: int, service: str) -> Turns:
    return Turns(threads, max(1, threads - 1), service)
