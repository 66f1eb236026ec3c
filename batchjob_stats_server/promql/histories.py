"""A pool of clients of the time series store, of limited size."""

import queue
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from batchjob_stats_server.turns import Turns

T = TypeVar("T")

ACQUIRE_TIMEOUT_SECONDS = 2.0


class TimeSeriesBusyError(TimeSeriesError):
    """All clients are in use, and none was returned in time."""


class TimeSeriesPool:
    """Each client is used by one thread at a time: a slow store must not occupy all threads."""

    def __init__(
        self, histories: Sequence[TimeSeriesStore], shared_queue: Turns | None = None
    ) -> None:
        """`shared_queue`: the queue that is shared with others who query the same store.

        Without clients, there are no measurements at all.
        """
        self.has_store = bool(histories)
        self._queue = shared_queue or Turns(len(histories), max(1, len(histories) // 2))
        self._idle: queue.LifoQueue[TimeSeriesStore] = queue.LifoQueue()
        for history in histories:
            self._idle.put(history)

    @contextmanager
    def acquire(self) -> Iterator[TimeSeriesStore]:
        """A client that nobody else uses; raises TimeSeriesBusyError if none becomes free soon."""
        try:
            history = self._idle.get(timeout=ACQUIRE_TIMEOUT_SECONDS)
        except queue.Empty:
            raise TimeSeriesBusyError from None
        try:
            yield history
        finally:
            self._idle.put(history)

    async def run(self, user: Hashable, work: Callable[[TimeSeriesStore], T]) -> T:
        """Do the work in a thread of the store's own when it is this user's turn.

        Raises TimeSeriesError.
        """

        def work_with_client() -> T:
            with self.acquire() as history:
                return work(history)

        try:
            return await self._queue.run(user, work_with_client)
        except (TooMany, Unavailable) as error:
            raise TimeSeriesBusyError from error
