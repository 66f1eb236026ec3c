"""One cluster's poller: query, write, measure, sum up, and repeat.

A cycle consists of a few steps, each of which may fail by itself: if a scheduler does not answer,
jobs are still measured, and if the TSDB is down, no record is lost. What a step could not do is
still due in the next cycle, since everything due is in the database.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import sqlalchemy as sa

from batchjob.runtime.log import LogOnce
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import (
    AccountingSource,
    AssociationsSource,
    Batch,
)
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.pending import measure_due
from batchjob_stats_db.measure.rollup import due_days, mark_running, roll_up, unmark_days
from batchjob_stats_db.poller.batch_writer import BatchWriter
from batchjob_stats_db.poller.counts import count_measured
from batchjob_stats_db.poller.options import ClusterSettings, PollOptions, RetentionOptions
from batchjob_stats_db.poller.pace import Pace
from batchjob_stats_db.poller.reread import Rereader
from batchjob_stats_db.poller.retention import delete_expired
from batchjob_stats_db.poller.scripts import ScriptReader
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore

log = logging.getLogger(__name__)

_JOBS_PER_BATCH = 1000
_DAYS_PER_BATCH = 50
# Advances during suspend, like the wall clock.
_BOOT_TIME = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Poller:
    """Polls one cluster, in one thread."""

    def __init__(
        self,
        cluster: ClusterSettings,
        store: Store,
        time_series: TimeSeriesStore | None,
        poll: PollOptions,
        retention: RetentionOptions,
        metrics: PollerMetrics,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = _BOOT_TIME,
    ) -> None:
        self.cluster = cluster
        self.store = store
        self._time_series = time_series
        self._poll = poll
        self._retention = retention
        self.metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._log_once = LogOnce(log)
        self._batch_writer = BatchWriter(store, metrics, clock)
        self._rereader = Rereader(
            cluster.sources,
            store,
            self._batch_writer,
            poll,
            clock,
            monotonic,
            self._signal_progress,
        )
        self._script_reader = ScriptReader(
            cluster.sources, store, self._batch_writer, clock, self._signal_progress
        )
        self._paces = {
            source.name: Pace(poll.interval, poll.longest_pause) for source in cluster.sources
        } | {
            source.name: Pace(poll.people_interval, poll.people_interval, poll.interval)
            for source in cluster.people
        }
        for name, pace in self._paces.items():
            metrics.poll_interval.labels(cluster.name, name).set(pace.interval)
        self._usage_pace = Pace(poll.interval, poll.longest_pause)
        self._rollup_pace = Pace(poll.rollup_interval, poll.rollup_interval)
        self._retention_pace = Pace(86400.0, 86400.0)
        self.last_progress = time.monotonic()  # monotonic time of the last sign of life
        self.has_polled = False  # whether every source has been read once

    def check(self) -> Iterator[str]:
        """Missing permissions to see all jobs and users, one line each with what to grant."""
        sources: list[AccountingSource | AssociationsSource] = [
            *self.cluster.sources,
            *self.cluster.people,
        ]
        for source in sources:
            try:
                for line in source.check():
                    yield f"{self.cluster.name}: {source.name}: {line}"
            except SchedulerError as error:
                yield f"{self.cluster.name}: {source.name}: {error}"

    def run(self, stop: threading.Event) -> None:
        """Run cycles until stopped."""
        for line in self.check():
            log.warning("%s", line)
        while not stop.is_set():
            self.run_cycle(stop)
            stop.wait(self._pause_seconds())

    def _pause_seconds(self) -> float:
        soonest = min(pace.next_time for pace in (*self._paces.values(), self._usage_pace))
        return min(max(soonest - self._monotonic(), 0.2), self._poll.interval)

    def run_cycle(self, stop: threading.Event | None = None) -> bool:
        """Do everything that is due, once; returns whether all of it succeeded."""
        stop = stop or threading.Event()
        self.last_progress = time.monotonic()
        cluster = self.cluster.name
        try:
            results = [self._poll_source(source, stop) for source in self.cluster.sources]
            results += [self._poll_associations(source) for source in self.cluster.people]
            results.append(self._rereader.reread_due_sources(stop))
            results.append(self._script_reader.read_missing(stop))
            results.append(self._measure(stop))
            if self._rollup_pace.is_due(self._monotonic()):
                self._roll_up(stop)
                self._rollup_pace.schedule_next(
                    self._monotonic(), self._monotonic(), succeeded=True
                )
            self._delete_expired()
            self.metrics.unfinished_jobs.labels(cluster).set(len(self.store.unfinished()))
        except sa.exc.DBAPIError as error:
            # Disk full, or the database locked or gone: nothing was committed, so nothing is lost.
            self.metrics.database_errors.labels(cluster).inc()
            self._log_once.warning("database", "%s: the database: %s", cluster, error.orig)
            return False
        self._log_once.forget("database")
        self.has_polled = self.has_polled or all(results)
        return all(results)

    def _poll_source(self, source: AccountingSource, stop: threading.Event) -> bool:
        pace = self._paces[source.name]
        started = self._monotonic()
        if not pace.is_due(started):
            return True
        labels = (self.cluster.name, source.name)
        try:
            for _ in self.write_batches(source, source.name):
                self.last_progress = time.monotonic()
                if stop.is_set():  # written batches are kept; the next poll reads the rest
                    return True
        except SchedulerError as error:
            self._batch_writer.record_failure(source.name, str(error))
            pace.schedule_next(started, self._monotonic(), succeeded=False)
            return False
        pace.schedule_next(started, self._monotonic(), succeeded=True)
        self._batch_writer.record_success(source.name)
        self.metrics.polls.labels(*labels, "ok").inc()
        self.metrics.poll_duration.labels(*labels).set(self._monotonic() - started)
        self.metrics.last_success.labels(*labels).set(self._clock())
        return True

    def write_batches(
        self, source: AccountingSource, key: str, since: int | None = None
    ) -> Iterator[int]:
        """Write the records of a source in batches; yields the time up to which it has been read.

        `key` is the name of the watermark. With `since`, the reading is a backfill: it begins there
        unless it was begun before, and no job counts as vanished.
        """
        name = self.cluster.name
        watermark = self.store.watermark(key)
        begin = since if since is not None else int(self._clock() - self._poll.first)
        unfinished = self.store.unfinished() if since is None else {}
        started = self._monotonic()
        for batch in source.read(watermark or source.watermark_at(begin), unfinished):
            self._batch_writer.write(batch, key, self._monotonic() - started)
            if batch.late:
                self._rereader.request(source.name)
            behind = max(0.0, self._clock() - batch.covered_until)
            self.metrics.behind_seconds.labels(name, source.name).set(behind)
            yield batch.covered_until
            started = self._monotonic()

    def backfill(self, source: AccountingSource, since: int) -> Iterator[int]:
        """Read a source from a time on; after a kill, it continues where it was."""
        key = f"{source.name}.backfill"
        covered = since
        for covered in self.write_batches(source, key, since):
            yield covered
        self.store.forget_watermark(key)
        if not self.store.watermark(source.name):  # so that the first poll does not read it again
            self.store.write(Batch((), (), source.watermark_at(covered), covered), source.name)

    def _poll_associations(self, source: AssociationsSource) -> bool:
        pace = self._paces[source.name]
        started = self._monotonic()
        if not pace.is_due(started):
            return True
        labels = (self.cluster.name, source.name)
        try:
            people = source.read()
        except SchedulerError as error:
            self._batch_writer.record_failure(source.name, str(error))
            pace.schedule_next(started, self._monotonic(), succeeded=False)
            return False
        self.store.write_associations(people, source.name, self._monotonic() - started)
        pace.schedule_next(started, self._monotonic(), succeeded=True)
        self._batch_writer.record_success(source.name)
        self.metrics.polls.labels(*labels, "ok").inc()
        self.metrics.last_success.labels(*labels).set(self._clock())
        return True

    def _measure(self, stop: threading.Event) -> bool:
        started = self._monotonic()
        if self._time_series is None or not self._usage_pace.is_due(started):
            return True
        try:
            while not stop.is_set() and self.measure_due_jobs():
                self.last_progress = time.monotonic()
        except TimeSeriesError as error:
            self.metrics.history_errors.labels(self.cluster.name).inc()
            self._log_once.warning("history", "%s: measurements: %s", self.cluster.name, error)
            self._usage_pace.schedule_next(started, self._monotonic(), succeeded=False)
            return False
        self._log_once.forget("history")
        self._usage_pace.schedule_next(started, self._monotonic(), succeeded=True)
        return True

    def _signal_progress(self) -> None:
        self.last_progress = time.monotonic()

    def measure_due_jobs(self) -> int:
        """Measure some of the jobs that are due; returns how many. Raises TimeSeriesError."""
        if self._time_series is None:
            return 0
        name = self.cluster.name
        now = int(self._clock())
        usages, failed = measure_due(
            self.store,
            self._time_series,
            self.cluster.tsdb.policy(),
            self.cluster.tsdb.scrape_interval,
            now,
            _JOBS_PER_BATCH,
            self._signal_progress,
        )
        for job, error in failed.items():
            self._log_once.warning(
                f"measuring {job.id}", "%s: job %s cannot be measured: %s", name, job.jobid, error
            )
        count_measured(self.metrics, name, usages, now)
        return len(usages) + len(failed)

    def roll_up_due_days(self) -> int:
        """Rebuild all days that are due; returns how many."""
        self._mark_due_days()
        done = 0
        while days := self._rebuild_days(threading.Event()):
            done += days
        return done

    def _roll_up(self, stop: threading.Event) -> None:
        self._mark_due_days()
        self._rebuild_days(stop)

    def _mark_due_days(self) -> None:
        name, now = self.cluster.name, int(self._clock())
        with self.store.transaction() as db:
            mark_running(db, name, now)
            if self._retention.jobs:  # days whose jobs were deleted must not be recomputed as empty
                unmark_days(db, name, int(now - self._retention.jobs))

    def _rebuild_days(self, stop: threading.Event) -> int:
        name, now = self.cluster.name, int(self._clock())
        with self.store.engine.connect() as db:
            days = due_days(db, name, _DAYS_PER_BATCH, now)
        for day in days:
            if stop.is_set():
                break
            with self.store.transaction() as db:
                roll_up(db, name, day, now)
            self.last_progress = time.monotonic()
            self.metrics.rolled_up_days.labels(name).inc()
        return len(days)

    def _delete_expired(self) -> None:
        started = self._monotonic()
        if self._retention_pace.is_due(started):
            delete_expired(self.store, self._retention, int(self._clock()))
            self._retention_pace.schedule_next(started, started, succeeded=True)
