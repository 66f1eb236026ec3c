"""What a source said goes into the database, and into the poller's own metrics."""

import logging
from collections.abc import Callable

from batchjob.runtime.log import Once
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.counts import count_ended
from batchjob_stats_db.poller.self_metrics import PollerMetrics

log = logging.getLogger(__name__)


class BatchWriter:
    """Writes one cluster's batches, and failures of its sources."""

    def __init__(self, store: Store, metrics: PollerMetrics, clock: Callable[[], float]) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._once = Once(log)

    def write(self, batch: Batch, key: str, seconds: float) -> None:
        """Write a batch; `key` is the name under which its watermark is kept."""
        name = self._store.cluster
        ended: list[JobRecord] = []
        written = self._store.write(batch, key, seconds, ended)
        count_ended(self._metrics, name, ended, self._clock())
        for outcome, number in written._asdict().items():
            self._metrics.jobs.labels(name, outcome).inc(number)
        self._metrics.vanished.labels(name).inc(len(batch.vanished))

    def failed(self, key: str, error: str) -> None:
        """Say it once, count it, and keep it beside the watermark."""
        name = self._store.cluster
        self._metrics.polls.labels(name, key, "error").inc()
        self._once.warning(key, "%s: %s: %s", name, key, error)
        self._store.failed(key, error)

    def succeeded(self, key: str) -> None:
        """It answers again, if it failed before."""
        self._once.over(key)
