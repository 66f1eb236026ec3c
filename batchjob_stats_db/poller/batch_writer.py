"""Writes the batches of sources into the database, and counts them in the poller's metrics."""

import logging
from collections.abc import Callable

from batchjob.runtime.log import LogOnce
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
        self._log_once = LogOnce(log)

    def write(self, batch: Batch, key: str, seconds: float) -> None:
        """Write a batch; `key` is the name of its watermark."""
        cluster = self._store.cluster
        ended: list[JobRecord] = []
        written = self._store.write(batch, key, seconds, ended)
        count_ended(self._metrics, cluster, ended, self._clock())
        for outcome, number in written._asdict().items():
            self._metrics.jobs.labels(cluster, outcome).inc(number)
        self._metrics.vanished_jobs.labels(cluster).inc(len(batch.vanished))

    def record_failure(self, key: str, error: str) -> None:
        """Log an error once, count it, and store it."""
        cluster = self._store.cluster
        self._metrics.polls.labels(cluster, key, "error").inc()
        self._log_once.warning(key, "%s: %s: %s", cluster, key, error)
        self._store.record_failure(key, error)

    def record_success(self, key: str) -> None:
        """Record that the source answers again, if it failed before."""
        self._log_once.forget(key)
