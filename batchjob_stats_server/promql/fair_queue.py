"""Queue of costly requests: a few are processed at a time, and no user takes all places."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread

from batchjob_stats_server.promql.query_limits import TooMany, Unavailable

LONGEST_LINE = 32
"""Maximum number of requests of one user, in progress or waiting: those of a large dashboard."""
_IN_ALL_FOR_EACH_PLACE = 32

T = TypeVar("T")


@dataclass
class _Own:
    places: anyio.Semaphore
    questions: int = 0


class FairQueue:
    """Separate threads for costly requests: a slow database must not take those of other routes.

    At most `concurrent` requests are processed at a time, at most `each` of them from one user.
    A user's further requests wait for each other, not in the line that all users share, so that
    places go from user to user. Must be used from the event loop's thread only.
    """

    def __init__(self, concurrent: int, each: int, of: str = "the time series database") -> None:
        self._places = anyio.CapacityLimiter(concurrent)
        self._each = each
        self._owns: dict[Hashable, _Own] = {}
        self._maximum = _IN_ALL_FOR_EACH_PLACE * concurrent
        self._of = of

    async def run(self, who: Hashable, work: Callable[[], T]) -> T:
        """Do the work in a thread when there is a place; raises TooMany, Unavailable."""
        own = self._owns.get(who) or _Own(anyio.Semaphore(self._each))
        if own.questions >= LONGEST_LINE:
            raise TooMany(f"expected at most {LONGEST_LINE} simultaneous requests; try again later")
        if self.questions() >= self._maximum:
            raise Unavailable(f"too many simultaneous requests to {self._of}")
        self._owns[who] = own
        own.questions += 1
        try:
            async with own.places:
                return await anyio.to_thread.run_sync(work, limiter=self._places)
        finally:
            own.questions -= 1
            if not own.questions:
                del self._owns[who]

    def questions(self) -> int:
        """Number of requests of all users, in progress or waiting."""
        return sum(own.questions for own in self._owns.values())

    def asked(self) -> int:
        """Number of requests in progress."""
        return int(self._places.borrowed_tokens)

    def places(self) -> int:
        """Number of requests that are processed at a time."""
        return int(self._places.total_tokens)
