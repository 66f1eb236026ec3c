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
class _UserRequests:
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
        self.users: dict[Hashable, _UserRequests] = {}
        self._maximum = _IN_ALL_FOR_EACH_PLACE * concurrent
        self._of = of

    async def run(self, who: Hashable, work: Callable[[], T]) -> T:
        """Do the work in a thread when there is a place; raises TooMany, Unavailable."""
        requests = self.users.get(who) or _UserRequests(anyio.Semaphore(self._each))
        if requests.questions >= LONGEST_LINE:
            raise TooMany(f"expected at most {LONGEST_LINE} simultaneous requests; try again later")
        if self.questions() >= self._maximum:
            raise Unavailable(f"too many simultaneous requests to {self._of}")
        self.users[who] = requests
        requests.questions += 1
        try:
            async with requests.places:
                return await anyio.to_thread.run_sync(work, limiter=self._places)
        finally:
            requests.questions -= 1
            if not requests.questions:
                del self.users[who]

    def questions(self) -> int:
        """Number of requests of all users, in progress or waiting."""
        return sum(requests.questions for requests in self.users.values())

    def asked(self) -> int:
        """Number of requests in progress."""
        return int(self._places.borrowed_tokens)

    def places(self) -> int:
        """Number of requests that are processed at a time."""
        return int(self._places.total_tokens)
