"""The number of threads that answer requests, and which of them run one after the other."""

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy.engine import URL

from batchjob_stats_server.turns import Turns

LONGEST_WAIT_SECONDS = 0.1
_FILE_THREADS = 8
_STORE_SECONDS = 1.0

T = TypeVar("T")


class Threads:
    """Maximum numbers of threads; each has a connection of its own to the database.

    Whatever hangs, one user does not take all threads of a kind.
    """

    def __init__(self, light: Turns, heavy: Turns, files: Turns, serial: bool = False) -> None:
        """`heavy`: for expensive queries, so that others need not wait for them.

        `files`: for files of users, whose file system may hang; without connections. `serial`:
        whether short queries run one after the other.
        """
        self.light = light
        self.heavy = heavy
        self.files = files
        self.store_seconds = _STORE_SECONDS
        self._serial = threading.Lock() if serial else None
        self._thread = threading.local()  # `holds_lock`
        # One thread never waits for the time series store.
        self._may_wait = threading.BoundedSemaphore(max(1, light.capacity() - 1))

    def is_busy(self) -> bool:
        """Whether short work is in progress for which other short work waits."""
        return self._serial is not None and self._serial.locked()

    def connections(self) -> int:
        """Maximum number of connections to the database: one per thread, and for readiness."""
        return self.light.capacity() + self.heavy.capacity() + 1

    def run_short(self, work: Callable[[], T]) -> T:
        """Do short work in this thread, after that of others if it must not run in parallel.

        Work that takes longer than LONGEST_WAIT_SECONDS, or is inside `while_waiting`, does not
        delay others.
        """
        if self._holds_lock():
            return work()
        self._acquire()
        try:
            return work()
        finally:
            self._release()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Entered by short work while it waits for something other than the database."""
        held = self._holds_lock()
        self._release()
        try:
            yield
        finally:
            if held:
                self._acquire()

    def wait_for_store(self, answers: Collection[Future[Any]]) -> None:
        """Wait until all answers of the time series store have arrived, for a second at most.

        A slow store must not occupy all threads: if too many wait already, this one goes on with
        what has arrived.
        """
        if all(answer.done() for answer in answers) or not self._may_wait.acquire(blocking=False):
            return
        try:
            with self.while_waiting():
                wait(answers, self.store_seconds)
        finally:
            self._may_wait.release()

    def _holds_lock(self) -> bool:
        return getattr(self._thread, "holds_lock", False)

    def _acquire(self) -> None:
        if self._serial is not None:
            self._thread.holds_lock = self._serial.acquire(timeout=LONGEST_WAIT_SECONDS)

    def _release(self) -> None:
        if self._serial is not None and self._holds_lock():
            self._thread.holds_lock = False
            self._serial.release()


class SharedCheck:
    """A check that may hang; one thread of its own does it for all who ask meanwhile.

    So that requests of anybody, however many, take no thread of others. For the event loop's
    thread only.
    """

    def __init__(self, check: Callable[[], str], seconds: float = 5.0) -> None:
        """`check` returns the problem, "" if there is none; `seconds`: how long to wait for it."""
        self._check = check
        self._seconds = seconds
        self._running: asyncio.Task[str] | None = None

    async def problem(self) -> str:
        """The result of the check; a problem too if it takes too long."""
        if self._running is None or self._running.done():
            # A limiter of its own, since the threads of the default one identify callers.
            in_thread = anyio.to_thread.run_sync(
                self._check, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
            self._running = asyncio.create_task(in_thread)
        running = self._running
        await asyncio.wait((running,), timeout=self._seconds)
        return running.result() if running.done() else f"no answer within {self._seconds:g} s"


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
        _turns(max(maximum - heavy, 1), "the server"),
        _turns(heavy, "the database"),
        _turns(_FILE_THREADS, "the file system"),
        serial=sqlite,
    )


def _turns(threads: int, service: str) -> Turns:
    return Turns(threads, max(1, threads - 1), service)
