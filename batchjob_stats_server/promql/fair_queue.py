"""A queue of requests: a few run at a time, and no user takes all threads."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from batchjob_stats_server.promql.query_limits import TooMany, Unavailable

MAX_REQUESTS_PER_USER = 32
"""Maximum number of requests of one user, running or waiting: those of a large dashboard."""
_MAX_REQUESTS_PER_THREAD = 32

T = TypeVar("T")
Identity = TypeVar("Identity")


@dataclass
class _UserRequests:
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def count(self) -> int:
        return self.running + len(self.waiting)


class FairQueue:
    """Threads for one kind of work: a slow database must not take those of other routes.

    At most `concurrent` requests are processed at a time, at most `max_per_user` of them from one
    user. A user's further requests wait in a queue of that user, not in the one that all users
    share, so that threads go from user to user. To be used from the event loop's thread only.
    """

    def __init__(
        self, concurrent: int, max_per_user: int, service: str = "the time series database"
    ) -> None:
        self._threads = anyio.CapacityLimiter(concurrent)
        self._max_per_user = max_per_user
        self.users: dict[Hashable, _UserRequests] = {}
        self._lock = threading.Lock()  # for users: threads of `run_as` begin requests, too
        self._maximum = _MAX_REQUESTS_PER_THREAD * concurrent
        self._service = service

    def share_threads(self, threads: anyio.CapacityLimiter) -> None:
        """Use these threads, which do other work as well; as many as the queue's own."""
        self._threads = threads

    async def run(self, user: Hashable, work: Callable[[], T]) -> T:
        """Do the work when a thread is free; raises TooMany, Unavailable."""
        if self._count_of(user) >= MAX_REQUESTS_PER_USER:
            raise TooMany(
                f"expected at most {MAX_REQUESTS_PER_USER} simultaneous requests; try again later"
            )
        if self.count() >= self._maximum:
            raise Unavailable(f"too many simultaneous requests to {self._service}")
        if not self._try_start(user):
            await self._wait_for_start(user)
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._finish(user)

    async def run_as(
        self,
        identify: Callable[[], Identity],
        user_of: Callable[[Identity], Hashable],
        work: Callable[[Identity], T],
    ) -> T:
        """Identify the user, and do the work for them.

        Both in one thread if one is free: passing work from thread to thread costs as much as
        identifying the user. Raises TooMany, Unavailable and what `identify` raises.
        """
        if self._threads.available_tokens < 1:
            identity = await anyio.to_thread.run_sync(identify)
            return await self.run(user_of(identity), partial(work, identity))
        started: list[Hashable] = []

        def identify_and_work() -> tuple[Identity, list[T]]:
            identity = identify()
            if not self._try_start(user_of(identity)):
                return identity, []
            started.append(user_of(identity))
            return identity, [work(identity)]

        try:
            identity, done = await anyio.to_thread.run_sync(
                identify_and_work, limiter=self._threads
            )
        finally:
            for user in started:
                self._finish(user)
        return done[0] if done else await self.run(user_of(identity), partial(work, identity))

    def _try_start(self, user: Hashable) -> bool:
        """Count a request of this user as running; False: it has to wait. In any thread."""
        with self._lock:
            requests = self.users.setdefault(user, _UserRequests())
            if requests.waiting or requests.running >= self._max_per_user:
                return False
            requests.running += 1
            return True

    async def _wait_for_start(self, user: Hashable) -> None:
        """Wait until a request of this user may run, and has been counted as running."""
        turn = asyncio.get_running_loop().create_future()
        with self._lock:
            waiting = self.users[user].waiting
            waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                waiting.remove(turn)
            else:
                self._finish(user)
            raise

    def _finish(self, user: Hashable) -> None:
        """End a request of this user, and start the next one."""
        with self._lock:
            requests = self.users[user]
            requests.running -= 1
            turn = next((each for each in requests.waiting if not each.done()), None)
            if turn is not None:
                requests.waiting.remove(turn)
                requests.running += 1
                turn.set_result(None)
            elif not requests.count():
                del self.users[user]

    def _count_of(self, user: Hashable) -> int:
        with self._lock:
            return self.users[user].count() if user in self.users else 0

    def count(self) -> int:
        """Number of requests of all users, running or waiting."""
        with self._lock:
            return sum(requests.count() for requests in self.users.values())

    def count_waiting(self) -> int:
        """Number of requests that wait for others of the same user."""
        with self._lock:
            return sum(len(requests.waiting) for requests in self.users.values())

    def count_running(self) -> int:
        """Number of requests that are running."""
        return int(self._threads.borrowed_tokens)

    def capacity(self) -> int:
        """Maximum number of requests that run at a time."""
        return int(self._threads.total_tokens)
