"""Turns per caller: many requests of one caller delay that caller's own requests, not others'.

Every queue of the server is one of these. A caller is a user, or an address whose user is not known
yet. A place that becomes free goes from caller to caller, whoever waits with how many requests.
For the event loop's thread only.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.to_thread

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
        self._running_in_all = 0
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
        self._count_as_running(caller)

    def _check(self, caller: Hashable, per_caller: int, in_all: float) -> None:
        """Raise TooMany or Unavailable if so many requests are running or waiting already."""
        if self._running[caller] + len(self._queues.get(caller, ())) >= per_caller:
            raise TooMany(f"expected at most {per_caller} simultaneous requests; try again later")
        if self.count() >= in_all:
            raise Unavailable(f"too many simultaneous requests to {self._service}")

    def acquire(self, caller: Hashable) -> Turn:
        """A future that is done when the request may begin; call `end` in any case."""
        turn: Turn = asyncio.get_running_loop().create_future()
        if caller not in self._queues and self._has_room(caller):
            turn.set_result(None)
            self._count_as_running(caller)
        else:
            self._queues.setdefault(caller, {})[turn] = None
        return turn

    def end(self, caller: Hashable, turn: Turn) -> None:
        """End a request, whether it has begun or still waits."""
        queue = self._queues.get(caller, {})
        if turn in queue:
            del queue[turn]
            if not queue:
                del self._queues[caller]
        elif not turn.cancelled():
            self.release(caller)

    def release(self, caller: Hashable) -> None:
        """Give back a place, and start the requests that it has room for."""
        self._running_in_all -= 1
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        # A caller that has left makes the share of all others larger.
        while sum(map(self._start_next, list(self._queues))):
            pass

    def _has_room(self, caller: Hashable) -> bool:
        if self._running_in_all >= self._places:
            return False
        share = max(self._fair_share, self._per_caller // max(len(self._running), 1))
        return caller is TRUSTED or self._running[caller] < share

    def _count_as_running(self, caller: Hashable) -> None:
        self._running[caller] += 1
        self._running_in_all += 1

    def _start_next(self, caller: Hashable) -> bool:
        """Start the first request of a caller, who then comes after the others; False: no room."""
        if not self._has_room(caller):
            return False
        queue = self._queues.pop(caller)
        turn = next(iter(queue))
        del queue[turn]
        if queue:
            self._queues[caller] = queue
        if not turn.cancelled():
            turn.set_result(None)
            self._count_as_running(caller)
        return True

    def count(self) -> int:
        return self._running_in_all + self.count_waiting()

    def count_waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def count_running(self) -> int:
        return self._running_in_all

    def capacity(self) -> int:
        return int(self._places)
