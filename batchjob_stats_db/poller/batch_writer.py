"""Writes the batches of sources into the database, and counts them in the poller's metrics."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from batchjob.runtime.log import LogOnce
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import RAW_LIMIT, JobRecord, QuarantinedRow
from batchjob_stats_db.database.gate import RULES, Refusal
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.isolation import is_database_failure, isolate_failures
from batchjob_stats_db.poller.self_metrics import PollerMetrics, count_ended

log = logging.getLogger(__name__)


class BatchWriter:
    """Writes one cluster's batches, and failures of its sources."""

    def __init__(
        self, store: Store, metrics: PollerMetrics, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        """`on_progress` is called after each batch, and may be after other steps."""
        self._store = store
        self._metrics = metrics
        self.on_progress = on_progress
        self._log_once = LogOnce(log)

    def write(self, batch: Batch, key: str, seconds: float) -> None:
        """Write a batch; `key` is the name of its watermark.

        If a record makes that fail, the others are written first, with the watermark as it was;
        then the rest of the batch, with that record in quarantine.
        """
        try:
            self._write(batch, key, seconds)
        except Exception as error:  # one record must not keep the others out
            if is_database_failure(error) or not batch.jobs:
                raise
            rest = self._write_storable(batch, key)
            self._write(rest, key, seconds)

    def _write_storable(self, batch: Batch, key: str) -> Batch:
        """Write the records that can be stored; returns the batch with the others set aside."""
        before = self._store.watermark(key)

        def write(jobs: Sequence[JobRecord]) -> None:
            self._write(Batch(tuple(jobs), (), before, batch.covered_until), key, 0.0)

        failed = isolate_failures(batch.jobs, write, is_database_failure)
        aside = [
            QuarantinedRow(
                job.source, f"it cannot be stored: {error!r}", repr(job)[:RAW_LIMIT], "unstorable"
            )
            for job, error in failed.items()
        ]
        return batch._replace(jobs=(), quarantined=(*batch.quarantined, *aside))

    def _write(self, batch: Batch, key: str, seconds: float) -> None:
        cluster = self._store.cluster
        written = self._store.write(batch, key, seconds)
        self.count_refused(written.refused)
        count_ended(self._metrics, cluster, written.newly_ended, self._store.clock())
        for outcome, number in written.counts.items():
            self._metrics.jobs.labels(cluster, outcome).inc(number)
        self.on_progress()

    def count_refused(self, refused: Counter[Refusal]) -> None:
        """Count what the gate refused, and log each kind once."""
        cluster = self._store.cluster
        for (source, rule), number in refused.items():
            self._metrics.refused.labels(cluster, source, rule).inc(number)
            self._log_once.warning(
                f"{source} {rule}",
                "%s: %s: refused: %s; see the page of sources, or the table quarantine",
                cluster, source, RULES[rule],
            )  # fmt: skip

    def record_failure(self, key: str, error: str) -> None:
        """Log each kind of error once, count it, and store it."""
        cluster = self._store.cluster
        self._metrics.polls.labels(cluster, key, "error").inc()
        self._log_once.failure(key, "%s: %s: %s", cluster, key, error)
        self._store.record_failure(key, error)

    def record_success(self, key: str) -> None:
        """Record that the source answers again, if it failed before."""
        self._log_once.forget(key)
