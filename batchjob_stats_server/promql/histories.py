"""Past measurements for several questions at once, but not for many."""

import queue
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore
from batchjob_stats_server.promql.fair_queue import FairQueue
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable

T = TypeVar("T")

_PATIENCE_SECONDS = 2.0


class HistoriesBusy(TimeSeriesError):
    """All are lent, and none came back in time."""


class TimeSeriesPool:
    """Each is lent to one thread: a slow store must not take all that answer questions."""

    def __init__(
        self, histories: Sequence[TimeSeriesStore], turns: FairQueue | None = None
    ) -> None:
        """`turns`: those of others who ask the same store."""
        self._turns = turns or FairQueue(len(histories), max(1, len(histories) // 2))
        self._idle: queue.LifoQueue[TimeSeriesStore] = queue.LifoQueue()
        for history in histories:
            self._idle.put(history)

    @contextmanager
    def lent(self) -> Iterator[TimeSeriesStore]:
        """One that nobody else has; raises HistoriesBusy when none comes free soon."""
        try:
            history = self._idle.get(timeout=_PATIENCE_SECONDS)
        except queue.Empty:
            raise HistoriesBusy from None
        try:
            yield history
        finally:
            self._idle.put(history)

    async def ask(self, who: Hashable, work: Callable[[TimeSeriesStore], T]) -> T:
        """Do the work in a thread of the store's own, when it is this user's turn.

        Raises TimeSeriesError.
        """

        def with_one() -> T:
            with self.lent() as history:
                return work(history)

        try:
            return await self._turns.run(who, with_one)
        except (TooMany, Unavailable) as error:
            raise HistoriesBusy from error
