"""Queue of costly requests: a few are processed at a time, and no user takes all places."""

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

LONGEST_LINE = 32
"""Maximum number of requests of one user, in progress or waiting: those of a large dashboard."""
_IN_ALL_FOR_EACH_PLACE = 32

T = TypeVar("T")
Asker = TypeVar("Asker")


@dataclass
class _UserRequests:
    begun: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def questions(self) -> int:
        return self.begun + len(self.waiting)


class FairQueue:
    """Separate threads for costly requests: a slow database must not take those of other routes.

    At most `concurrent` requests are processed at a time, at most `each` of them from one user.
    A user's further requests wait for each other, not in the line that all users share, so that
    places go from user to user. Must be used from the event loop's thread only.
    """

    def __init__(self, concurrent: int, each: int, of: str = "the time series database") -> None:
        self._places = anyio.CapacityLimiter(concurrent)
        self._each = each
        self.users: dict[Hashable, _UserRequests] = {}
        self._lock = threading.Lock()  # for users: threads of `run_as` begin requests, too
        self._maximum = _IN_ALL_FOR_EACH_PLACE * concurrent
        self._of = of

    async def run(self, who: Hashable, work: Callable[[], T]) -> T:
        """Do the work in a thread when there is a place; raises TooMany, Unavailable."""
        if self._questions_of(who) >= LONGEST_LINE:
            raise TooMany(f"expected at most {LONGEST_LINE} simultaneous requests; try again later")
        if self.questions() >= self._maximum:
            raise Unavailable(f"too many simultaneous requests to {self._of}")
        if not self._begin(who):
            await self._turn(who)
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._places)
        finally:
            self._end(who)

    async def run_as(
        self,
        identify: Callable[[], Asker],
        who: Callable[[Asker], Hashable],
        work: Callable[[Asker], T],
    ) -> T:
        """Identify somebody, and do the work for them.

        Both in one thread if there is a place at once: passing work from thread to thread costs as
        much as to identify somebody. Raises TooMany, Unavailable and what `identify` raises.
        """
        if self._places.available_tokens < 1:
            asker = await anyio.to_thread.run_sync(identify)
            return await self.run(who(asker), partial(work, asker))
        begun: list[Hashable] = []

        def both() -> tuple[Asker, list[T]]:
            asker = identify()
            if not self._begin(who(asker)):
                return asker, []
            begun.append(who(asker))
            return asker, [work(asker)]

        try:
            asker, done = await anyio.to_thread.run_sync(both, limiter=self._places)
        finally:
            for user in begun:
                self._end(user)
        return done[0] if done else await self.run(who(asker), partial(work, asker))

    def _begin(self, who: Hashable) -> bool:
        """Whether a request of this user may begin, which then has begun; in any thread."""
        with self._lock:
            requests = self.users.setdefault(who, _UserRequests())
            if requests.waiting or requests.begun >= self._each:
                return False
            requests.begun += 1
            return True

    async def _turn(self, who: Hashable) -> None:
        """Wait until a request of this user has begun."""
        turn = asyncio.get_running_loop().create_future()
        with self._lock:
            waiting = self.users[who].waiting
            waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                waiting.remove(turn)
            else:
                self._end(who)
            raise

    def _end(self, who: Hashable) -> None:
        """A request of this user has ended: the next one begins."""
        with self._lock:
            requests = self.users[who]
            requests.begun -= 1
            turn = next((each for each in requests.waiting if not each.done()), None)
            if turn is not None:
                requests.waiting.remove(turn)
                requests.begun += 1
                turn.set_result(None)
            elif not requests.questions():
                del self.users[who]

    def _questions_of(self, who: Hashable) -> int:
        with self._lock:
            return self.users[who].questions() if who in self.users else 0

    def questions(self) -> int:
        """Number of requests of all users, in progress or waiting."""
        with self._lock:
            return sum(requests.questions() for requests in self.users.values())

    def asked(self) -> int:
        """Number of requests in progress."""
        return int(self._places.borrowed_tokens)

    def places(self) -> int:
        """Number of requests that are processed at a time."""
        return int(self._places.total_tokens)
