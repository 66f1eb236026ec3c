"""A pool of clients for past measurements, of limited size."""

import queue
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore
from batchjob_stats_server.promql.fair_queue import FairQueue
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable

T = TypeVar("T")

PATIENCE_SECONDS = 2.0


class TimeSeriesBusyError(TimeSeriesError):
    """All clients are in use, and none was returned in time."""


class TimeSeriesPool:
    """Each client is lent to one thread: a slow store must not occupy all threads."""

    def __init__(
        self, histories: Sequence[TimeSeriesStore], turns: FairQueue | None = None
    ) -> None:
        """`turns`: the queue that is shared with others who query the same store."""
        self._turns = turns or FairQueue(len(histories), max(1, len(histories) // 2))
        self._idle: queue.LifoQueue[TimeSeriesStore] = queue.LifoQueue()
        for history in histories:
            self._idle.put(history)

    @contextmanager
    def lent(self) -> Iterator[TimeSeriesStore]:
        """A client that nobody else uses; raises TimeSeriesBusyError if none becomes free soon."""
        try:
            history = self._idle.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise TimeSeriesBusyError from None
        try:
            yield history
        finally:
            self._idle.put(history)

    async def ask(self, who: Hashable, work: Callable[[TimeSeriesStore], T]) -> T:
        """Do the work in a thread of the store's own when it is this user's turn.

        Raises TimeSeriesError.
        """

        def with_one() -> T:
            with self.lent() as history:
                return work(history)

        try:
            return await self._turns.run(who, with_one)
        except (TooMany, Unavailable) as error:
            raise TimeSeriesBusyError from error
