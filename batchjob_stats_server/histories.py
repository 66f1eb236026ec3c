"""Past measurements for several questions at once, but not for many."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from batchjob_stats_db.history.history import History, HistoryError

_PATIENCE_SECONDS = 5.0


class HistoriesBusy(HistoryError):
    """All are lent, and none came back in time."""


class Histories:
    """Each is lent to one thread: a slow store must not take all that answer questions."""

    def __init__(self, histories: Sequence[History]) -> None:
        self._idle: queue.LifoQueue[History] = queue.LifoQueue()
        for history in histories:
            self._idle.put(history)

    @contextmanager
    def lent(self) -> Iterator[History]:
        """One that nobody else has; raises HistoriesBusy when none comes free soon."""
        try:
            history = self._idle.get(timeout=_PATIENCE_SECONDS)
        except queue.Empty:
            raise HistoriesBusy from None
        try:
            yield history
        finally:
            self._idle.put(history)
