"""In how many threads requests are answered, and which of them wait for each other."""

import os
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sqlalchemy.engine import URL

from batchjob_stats_server.promql.fair_queue import FairQueue

LONGEST_WAIT_SECONDS = 0.1

T = TypeVar("T")


class Threads(NamedTuple):
    """How many answer at a time; each has a connection of its own to the database."""

    light: int
    heavy: FairQueue  # for costly questions, so that others need not wait for them
    one_by_one: "threading.Lock | None" = (
        None  # held during short work; None: that runs in parallel
    )

    def connections(self) -> int:
        """To the database: one for each."""
        return self.light + self.heavy.places()

    def short(self, work: Callable[[], T]) -> T:
        """Do short work in this thread, after that of others where it must not run in parallel.

        Work that takes longer than LONGEST_WAIT_SECONDS no longer holds up others.
        """
        lock = self.one_by_one
        if lock is None:
            return work()
        held = lock.acquire(timeout=LONGEST_WAIT_SECONDS)
        try:
            return work()
        finally:
            if held:
                lock.release()


def threads_of(url: URL, most: int) -> Threads:
    """So many, of which some are kept for either kind.

    SQLite works in this process, and Python's sqlite3 releases the interpreter's lock at each row
    (_sqlite/cursor.c, Py_BEGIN_ALLOW_THREADS). Of several threads that read, each would wait for
    the others at every row, which takes twice as long as reading one after the other.
    """
    sqlite = url.get_backend_name() == "sqlite"
    heavy = most // 2
    if sqlite:
        heavy = min(heavy, len(os.sched_getaffinity(0)) + 1)
    heavy = max(heavy, 1)
    queue = FairQueue(heavy, max(1, heavy - 1), of="the database")
    return Threads(max(most - heavy, 1), queue, threading.Lock() if sqlite else None)
