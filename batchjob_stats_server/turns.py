"""Turns per caller: many requests of one caller delay that caller's own requests, not others'.

Every queue of the server is one of these. A caller is a user, or an address whose user is not known
yet. A place that becomes free goes from caller to caller, whoever waits with how many requests.
For the event loop's thread only. At the end: the threads that answer requests, and the clients of
the time series store.
"""

import asyncio
import os
import queue
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy.engine import URL

from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable

MAX_REQUESTS_PER_CALLER = 32
"""Maximum number of requests of one caller, running or waiting: those of a large dashboard."""
_MAX_REQUESTS_PER_PLACE = 32

TRUSTED = None
"""A caller that forwards the requests of many users: the number of its requests is not limited."""

T = TypeVar("T")

Turn = asyncio.Future[None]


class Turns:
    """At most `places` requests at a time, and at most `per_caller` of one caller."""

    def __init__(
        self, places: float, per_caller: int, service: str = "", fair_share: int | None = None
    ) -> None:
        """`service`: what the requests are for, in the message about too many of them.

        `fair_share`: the number of places that a caller has however many others there are, if they
        all share `per_caller` places; None: each has `per_caller`.
        """
        self._places = places
        self._per_caller = per_caller
        self._fair_share = min(fair_share or per_caller, per_caller)
        self._service = service
        self._running: Counter[Hashable] = Counter()
        self.running = 0  # requests in progress, of all callers
        self.waiting = 0
        self._queues: dict[Hashable, dict[Turn, None]] = {}  # the next to start is first
        self._threads = anyio.CapacityLimiter(places)

    def share_threads(self, threads: anyio.CapacityLimiter) -> None:
        """Use these threads, which do other work as well; as many as there are places."""
        self._threads = threads

    async def run(self, caller: Hashable, work: Callable[[], T]) -> T:
        """Do the work in a thread; raises TooMany, Unavailable."""
        async with self.take(caller):
            return await anyio.to_thread.run_sync(work, limiter=self._threads)

    @asynccontextmanager
    async def take(self, caller: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and keep it; raises TooMany, Unavailable."""
        self._check(caller, MAX_REQUESTS_PER_CALLER, _MAX_REQUESTS_PER_PLACE * self._places)
        turn = self.acquire(caller)
        try:
            await turn
            yield
        finally:
            self.end(caller, turn)

    def take_now(self, caller: Hashable) -> None:
        """Take a place without waiting, which `release` gives back; raises TooMany, Unavailable."""
        self._check(caller, self._per_caller, self._places)
        self._running[caller] += 1
        self.running += 1

    def _check(self, caller: Hashable, per_caller: int, in_all: float) -> None:
        """Raise TooMany or Unavailable if so many requests are running or waiting already."""
        if self._running[caller] + len(self._queues.get(caller, ())) >= per_caller:
            raise TooMany(f"expected at most {per_caller} simultaneous requests; try again later")
        if self.running + self.waiting >= in_all:
            raise Unavailable(f"too many simultaneous requests to {self._service}")

    def acquire(self, caller: Hashable) -> Turn:
        """A future that is done when the request may begin; call `end` in any case."""
        turn: Turn = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(caller, {})
        queue[turn] = None
        self.waiting += 1
        if len(queue) == 1:
            self._start_next(caller)
        return turn

    def end(self, caller: Hashable, turn: Turn) -> None:
        """End a request, whether it has begun or still waits."""
        queue = self._queues.get(caller, {})
        if turn in queue:
            del queue[turn]
            self.waiting -= 1
            if not queue:
                del self._queues[caller]
        elif not turn.cancelled():
            self.release(caller)

    def release(self, caller: Hashable) -> None:
        """Give back a place, and start the requests that it has room for."""
        self.running -= 1
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        # A caller that has left makes the share of all others larger.
        while sum(map(self._start_next, list(self._queues))):
            pass

    def _has_room(self, caller: Hashable) -> bool:
        if self.running >= self._places:
            return False
        share = max(self._fair_share, self._per_caller // max(len(self._running), 1))
        return caller is TRUSTED or self._running[caller] < share

    def _start_next(self, caller: Hashable) -> bool:
        """Start the first request of a caller, who then comes after the others; False: no room."""
        if not self._has_room(caller):
            return False
        queue = self._queues.pop(caller)
        turn = next(iter(queue))
        del queue[turn]
        self.waiting -= 1
        if queue:
            self._queues[caller] = queue
        if not turn.cancelled():
            turn.set_result(None)
            self._running[caller] += 1
            self.running += 1
        return True

    def capacity(self) -> int:
        return int(self._places)


LONGEST_WAIT_SECONDS = 0.1
_FILE_THREADS = 8
_STORE_SECONDS = 1.0


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

    def connections(self) -> int:
        """Maximum number of connections to the database: one per thread, and for readiness."""
        return self.light.capacity() + self.heavy.capacity() + 1

    def run_short(self, work: Callable[[], T]) -> T:
        """Do short work in this thread, after that of others if it must not run in parallel.

        Work that takes longer than LONGEST_WAIT_SECONDS, or is inside `while_waiting`, does not
        delay others.
        """
        if self._serial is None:
            return work()
        self._thread.holds_lock = self._serial.acquire(timeout=LONGEST_WAIT_SECONDS)
        try:
            return work()
        finally:
            self._release()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Entered by short work while it waits for something other than the database."""
        held = self._release()
        try:
            yield
        finally:
            if self._serial is not None and held:
                self._thread.holds_lock = self._serial.acquire(timeout=LONGEST_WAIT_SECONDS)

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

    def _release(self) -> bool:
        """Whether this thread held the lock."""
        held = getattr(self._thread, "holds_lock", False)
        if self._serial is not None and held:
            self._thread.holds_lock = False
            self._serial.release()
        return held


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


ACQUIRE_TIMEOUT_SECONDS = 2.0


class TimeSeriesBusyError(TimeSeriesError):
    """All clients are in use, and none was returned in time."""


class TimeSeriesPool:
    """Each client is used by one thread at a time: a slow store must not occupy all threads."""

    def __init__(
        self, stores: Sequence[TimeSeriesStore], shared_queue: Turns | None = None
    ) -> None:
        """`shared_queue`: the queue that is shared with others who query the same store.

        Without clients, there are no measurements at all.
        """
        self.has_store = bool(stores)
        self._queue = shared_queue or Turns(len(stores), max(1, len(stores) // 2))
        self._idle: queue.LifoQueue[TimeSeriesStore] = queue.LifoQueue()
        for store in stores:
            self._idle.put(store)

    @contextmanager
    def acquire(self) -> Iterator[TimeSeriesStore]:
        """A client that nobody else uses; raises TimeSeriesBusyError if none becomes free soon."""
        try:
            store = self._idle.get(timeout=ACQUIRE_TIMEOUT_SECONDS)
        except queue.Empty:
            raise TimeSeriesBusyError from None
        try:
            yield store
        finally:
            self._idle.put(store)

    async def run(self, user: Hashable, work: Callable[[TimeSeriesStore], T]) -> T:
        """Do the work in a thread of the store's own when it is this user's turn.

        Raises TimeSeriesError.
        """

        def work_with_client() -> T:
            with self.acquire() as store:
                return work(store)

        try:
            return await self._queue.run(user, work_with_client)
        except (TooMany, Unavailable) as error:
            raise TimeSeriesBusyError from error
