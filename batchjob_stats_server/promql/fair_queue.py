"""Who may ask the time series database when: few at once, and nobody takes all places."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread

from batchjob_stats_server.promql.query_limits import TooMany, Unavailable

LONGEST_LINE = 32
"""Questions of one user, asked or in line: those of a large dashboard."""
_IN_ALL_FOR_EACH_PLACE = 32

T = TypeVar("T")


@dataclass
class _Own:
    places: anyio.Semaphore
    questions: int = 0


class FairQueue:
    """Threads of their own for questions: a slow database must not take those of other routes.

    A user's questions wait for each other first and only then, at most `each` of them, in line with
    those of others; so that line goes from user to user. Used by the event loop's thread alone.
    """

    def __init__(self, concurrent: int, each: int) -> None:
        self._places = anyio.CapacityLimiter(concurrent)
        self._each = each
        self._owns: dict[Hashable, _Own] = {}
        self._most = _IN_ALL_FOR_EACH_PLACE * concurrent

    async def run(self, who: Hashable, work: Callable[[], T]) -> T:
        """Do the work in a thread when its turn has come; raises TooMany, Unavailable."""
        own = self._owns.get(who) or _Own(anyio.Semaphore(self._each))
        if own.questions >= LONGEST_LINE:
            raise TooMany(f"expected at most {LONGEST_LINE} questions at once; ask again later")
        if self.questions() >= self._most:
            raise Unavailable("too many questions to the time series database at once")
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
        """Asked or in line, of all users."""
        return sum(own.questions for own in self._owns.values())

    def asked(self) -> int:
        """Asked now."""
        return int(self._places.borrowed_tokens)
