"""The number of threads that answer requests, and which of them take turns."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, TypeVar

from sqlalchemy.engine import URL

from batchjob_stats_server.promql.fair_queue import FairQueue

LONGEST_WAIT_SECONDS = 0.1

T = TypeVar("T")


class OneByOne:
    """Lets short work of different threads run one after the other.

    Work that takes longer than LONGEST_WAIT_SECONDS, or steps aside, does not delay others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()  # `holds`: whether this thread holds the lock

    def busy(self) -> bool:
        """Whether work is in progress for which others wait."""
        return self._lock.locked()

    def do(self, work: Callable[[], T]) -> T:
        """Do the work in this thread."""
        if self._holds():
            return work()
        self._take()
        try:
            return work()
        finally:
            self._give()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let others work meanwhile."""
        held = self._holds()
        self._give()
        try:
            yield
        finally:
            if held:
                self._take()

    def _holds(self) -> bool:
        return getattr(self._thread, "holds", False)

    def _take(self) -> None:
        self._thread.holds = self._lock.acquire(timeout=LONGEST_WAIT_SECONDS)

    def _give(self) -> None:
        if self._holds():
            self._thread.holds = False
            self._lock.release()


class Threads(NamedTuple):
    """Maximum numbers of threads; each has a connection of its own to the database."""

    light: int
    heavy: FairQueue  # for expensive queries, so that others need not wait for them
    one_by_one: OneByOne | None = None  # None: short queries run in parallel

    def connections(self) -> int:
        """Maximum number of connections to the database: one per thread."""
        return self.light + self.heavy.places()

    def short(self, work: Callable[[], T]) -> T:
        """Do short work in this thread, after that of others if it must not run in parallel."""
        return self.one_by_one.do(work) if self.one_by_one else work()

    def aside(self) -> AbstractContextManager[None]:
        """For the time in which short work waits for something other than the database."""
        return self.one_by_one.aside() if self.one_by_one else nullcontext()


def threads_of(url: URL, most: int) -> Threads:
    """At most this many threads, some of which are reserved for either kind of request.

    SQLite works in this process, and Python's sqlite3 releases the interpreter's lock at each row
    (_sqlite/cursor.c, Py_BEGIN_ALLOW_THREADS). If several threads read, each waits for the others
    at every row, which takes twice as long as reading one after the other.
    """
    sqlite = url.get_backend_name() == "sqlite"
    heavy = most // 2
    if sqlite:
        heavy = min(heavy, len(os.sched_getaffinity(0)) + 1)
    heavy = max(heavy, 1)
    queue = FairQueue(heavy, max(1, heavy - 1), of="the database")
    return Threads(max(most - heavy, 1), queue, OneByOne() if sqlite else None)
