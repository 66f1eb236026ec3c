"""Jobs that accounting believes to run and the controller has forgotten."""

from collections.abc import Callable, Collection

from batchjob_stats_db.sources.source import SourceError


class Runaways:
    """Compares now and then; a job is runaway when two comparisons in a row miss it.

    One is not enough: a job may end between the two answers.
    """

    def __init__(self, interval: float, clock: Callable[[], float]) -> None:
        self._interval = interval
        self._clock = clock
        self._next = clock()
        self._suspects: frozenset[str] = frozenset()

    def of(self, live: Collection[str], queue: Callable[[], Collection[str]]) -> tuple[str, ...]:
        """Ids out of `live` that are runaway; calls `queue` only when it is time."""
        if not self._interval or not live or self._clock() < self._next:
            return ()
        queued = queue()
        if not queued and len(live) > 1:
            raise SourceError("the controller's queue is empty while accounting has running jobs")
        absent = frozenset(live).difference(queued)
        runaway = absent & self._suspects
        # Whoever is suspected is looked at again in the next cycle.
        self._next = self._clock() + (0 if absent - runaway else self._interval)
        self._suspects = absent
        return tuple(sorted(runaway))
