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
from batchjob_stats_db.poller.reread import Rereading
from batchjob_stats_db.poller.retention import drop_old
from batchjob_stats_db.poller.scripts import ScriptReading
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore

log = logging.getLogger(__name__)

_MEASURED_AT_ONCE = 1000
_DAYS_AT_ONCE = 50
# Advances during suspend, like the wall clock.
_BOOT_TIME = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Poller:
    """Polls one cluster, in one thread."""

    def __init__(
        self,
        cluster: ClusterSettings,
        store: Store,
        history: TimeSeriesStore | None,
        poll: PollOptions,
        retention: RetentionOptions,
        metrics: PollerMetrics,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = _BOOT_TIME,
    ) -> None:
        self.cluster = cluster
        self.store = store
        self._history = history
        self._poll = poll
        self._retention = retention
        self.metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._once = LogOnce(log)
        self._writer = BatchWriter(store, metrics, clock)
        self._rereading = Rereading(
            cluster.sources, store, self._writer, poll, clock, monotonic, self._live
        )
        self._scripts = ScriptReading(cluster.sources, store, self._writer, clock, self._live)
        self._paces = {
            source.name: Pace(poll.interval, poll.longest_pause) for source in cluster.sources
        } | {
            source.name: Pace(poll.people_interval, poll.people_interval, poll.interval)
            for source in cluster.people
        }
        for name, pace in self._paces.items():
            metrics.interval.labels(cluster.name, name).set(pace.interval)
        self._usage_pace = Pace(poll.interval, poll.longest_pause)
        self._rollup_pace = Pace(poll.rollup_interval, poll.rollup_interval)
        self._retention_pace = Pace(86400.0, 86400.0)
        self.beat = time.monotonic()  # monotonic time of the last sign of life
        self.polled = False  # whether every source has been read once

    def check(self) -> Iterator[str]:
        """What keeps us from seeing every job and everybody, one line each with what to grant."""
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
            self.cycle(stop)
            stop.wait(self._pause())

    def _pause(self) -> float:
        soonest = min(pace.next for pace in (*self._paces.values(), self._usage_pace))
        return min(max(soonest - self._monotonic(), 0.2), self._poll.interval)

    def cycle(self, stop: threading.Event | None = None) -> bool:
        """Do everything that is due, once; returns whether all of it succeeded."""
        stop = stop or threading.Event()
        self.beat = time.monotonic()
        name = self.cluster.name
        try:
            steps = [self._read(source, stop) for source in self.cluster.sources]
            steps += [self._read_people(source) for source in self.cluster.people]
            steps.append(self._rereading.some(stop))
            steps.append(self._scripts.some(stop))
            steps.append(self._measure(stop))
            if self._rollup_pace.due(self._monotonic()):
                self._roll_up(stop)
                self._rollup_pace.after(self._monotonic(), self._monotonic(), well=True)
            self._drop_old()
            self.metrics.unfinished.labels(name).set(len(self.store.unfinished()))
        except sa.exc.DBAPIError as error:
            # Disk full, or the database locked or gone: nothing was committed, so nothing is lost.
            self.metrics.database_errors.labels(name).inc()
            self._once.warning("database", "%s: the database: %s", name, error.orig)
            return False
        self._once.over("database")
        self.polled = self.polled or all(steps)
        return all(steps)

    def _read(self, source: AccountingSource, stop: threading.Event) -> bool:
        pace = self._paces[source.name]
        begun = self._monotonic()
        if not pace.due(begun):
            return True
        labels = (self.cluster.name, source.name)
        try:
            for _ in self.batches(source, source.name):
                self.beat = time.monotonic()
                if stop.is_set():  # written batches are kept; the next poll reads the rest
                    return True
        except SchedulerError as error:
            self._writer.failed(source.name, str(error))
            pace.after(begun, self._monotonic(), well=False)
            return False
        pace.after(begun, self._monotonic(), well=True)
        self._writer.succeeded(source.name)
        self.metrics.polls.labels(*labels, "ok").inc()
        self.metrics.seconds.labels(*labels).set(self._monotonic() - begun)
        self.metrics.success.labels(*labels).set(self._clock())
        return True

    def batches(
        self, source: AccountingSource, key: str, since: int | None = None
    ) -> Iterator[int]:
        """Write what a source has, batch by batch; yields up to when it has been read.

        `key` is the name of the watermark. With `since`, the reading is a backfill: it begins there
        unless it was begun before, and no job counts as vanished.
        """
        name = self.cluster.name
        watermark = self.store.watermark(key)
        begin = since if since is not None else int(self._clock() - self._poll.first)
        unfinished = self.store.unfinished() if since is None else {}
        begun = self._monotonic()
        for batch in source.read(watermark or source.watermark_at(begin), unfinished):
            self._writer.write(batch, key, self._monotonic() - begun)
            if batch.late:
                self._rereading.want(source.name)
            behind = max(0.0, self._clock() - batch.covered_until)
            self.metrics.behind.labels(name, source.name).set(behind)
            yield batch.covered_until
            begun = self._monotonic()

    def backfill(self, source: AccountingSource, since: int) -> Iterator[int]:
        """Read a source from a time on; after a kill, it continues where it was."""
        key = f"{source.name}.backfill"
        covered = since
        for covered in self.batches(source, key, since):
            yield covered
        self.store.forget_watermark(key)
        if not self.store.watermark(source.name):  # so that the first poll does not read it again
            self.store.write(Batch((), (), source.watermark_at(covered), covered), source.name)

    def _read_people(self, source: AssociationsSource) -> bool:
        pace = self._paces[source.name]
        begun = self._monotonic()
        if not pace.due(begun):
            return True
        labels = (self.cluster.name, source.name)
        try:
            people = source.read()
        except SchedulerError as error:
            self._writer.failed(source.name, str(error))
            pace.after(begun, self._monotonic(), well=False)
            return False
        self.store.write_people(people, source.name, self._monotonic() - begun)
        pace.after(begun, self._monotonic(), well=True)
        self._writer.succeeded(source.name)
        self.metrics.polls.labels(*labels, "ok").inc()
        self.metrics.success.labels(*labels).set(self._clock())
        return True

    def _measure(self, stop: threading.Event) -> bool:
        begun = self._monotonic()
        if self._history is None or not self._usage_pace.due(begun):
            return True
        try:
            while not stop.is_set() and self.measure_some():
                self.beat = time.monotonic()
        except TimeSeriesError as error:
            self.metrics.history_errors.labels(self.cluster.name).inc()
            self._once.warning("history", "%s: measurements: %s", self.cluster.name, error)
            self._usage_pace.after(begun, self._monotonic(), well=False)
            return False
        self._once.over("history")
        self._usage_pace.after(begun, self._monotonic(), well=True)
        return True

    def _live(self) -> None:
        self.beat = time.monotonic()

    def measure_some(self) -> int:
        """Measure some of the jobs that are due; returns how many. Raises TimeSeriesError."""
        if self._history is None:
            return 0
        name = self.cluster.name
        now = int(self._clock())
        usages, failed = measure_due(
            self.store,
            self._history,
            self.cluster.tsdb.policy(),
            self.cluster.tsdb.scrape_interval,
            now,
            _MEASURED_AT_ONCE,
            self._live,
        )
        for job, error in failed.items():
            self._once.warning(
                f"measuring {job.id}", "%s: job %s cannot be measured: %s", name, job.jobid, error
            )
        count_measured(self.metrics, name, usages, now)
        return len(usages) + len(failed)

    def roll_up_all(self) -> int:
        """Rebuild all days that are due; returns how many."""
        self._mark_due()
        done = 0
        while days := self._make_days(threading.Event()):
            done += days
        return done

    def _roll_up(self, stop: threading.Event) -> None:
        self._mark_due()
        self._make_days(stop)

    def _mark_due(self) -> None:
        name, now = self.cluster.name, int(self._clock())
        with self.store.transaction() as db:
            mark_running(db, name, now)
            if self._retention.jobs:  # days whose jobs were deleted must not be recomputed as empty
                unmark_days(db, name, int(now - self._retention.jobs))

    def _make_days(self, stop: threading.Event) -> int:
        name, now = self.cluster.name, int(self._clock())
        with self.store.engine.connect() as db:
            days = due_days(db, name, _DAYS_AT_ONCE, now)
        for day in days:
            if stop.is_set():
                break
            with self.store.transaction() as db:
                roll_up(db, name, day, now)
            self.beat = time.monotonic()
            self.metrics.days.labels(name).inc()
        return len(days)

    def _drop_old(self) -> None:
        begun = self._monotonic()
        if self._retention_pace.due(begun):
            drop_old(self.store, self._retention, int(self._clock()))
            self._retention_pace.after(begun, begun, well=True)
