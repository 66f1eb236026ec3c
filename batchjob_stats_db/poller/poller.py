"""One cluster's poller: query, write, measure, sum up, and repeat.

A cycle consists of steps, each in a guard of its own: whatever makes one fail is logged once and
counted, the next steps run, and the failed one is tried again. If a scheduler does not answer, jobs
are still measured, and if the TSDB is down, no record is lost. What a step could not do is still
due in the next cycle, since everything due is in the database.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import sqlalchemy as sa

from batchjob.runtime.log import LogOnce
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import (
    AccountingSource,
    AssociationsSource,
    Batch,
    CommentSource,
)
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.isolation import Patience, do_each, is_database_failure
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.live import LiveMeasurement
from batchjob_stats_db.measure.pending import measure_due
from batchjob_stats_db.measure.rollup import due_days, mark_running, roll_up, unmark_days
from batchjob_stats_db.poller.batch_writer import BatchWriter
from batchjob_stats_db.poller.job_comments import JobCommentWriter
from batchjob_stats_db.poller.messages.causes import Causes
from batchjob_stats_db.poller.messages.options import NO_MESSAGES, MessageOptions
from batchjob_stats_db.poller.options import ClusterSettings, PollOptions, RetentionOptions
from batchjob_stats_db.poller.reread import Pace, Rereader, read_missing_scripts
from batchjob_stats_db.poller.retention import delete_expired
from batchjob_stats_db.poller.self_metrics import PollerMetrics, count_measured, show_only
from batchjob_stats_db.queries.operators import held_gpus
from batchjob_stats_db.queries.stats import usual_waits
from batchjob_stats_db.samples.folder import samples_problem
from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore

log = logging.getLogger(__name__)

_DAYS_PER_BATCH = 50
_DATABASE_RETRY_SECONDS = 10.0
# Longer than the commands of a batch may take; afterwards the other sources are read.
_ANSWER_SECONDS = 600.0
# Advances during suspend, like the wall clock.
_BOOT_TIME = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


_Work = Callable[[], object]
"""A part of a cycle; returns False if a part of it failed."""


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
        monotonic: Callable[[], float] = _BOOT_TIME,
        messages: MessageOptions = NO_MESSAGES,
    ) -> None:
        self.cluster = cluster
        self.store = store
        self._time_series = time_series
        self._poll = poll
        self._retention = retention
        self.metrics = metrics
        self._monotonic = monotonic
        self._log_once = LogOnce(log)
        self._batch_writer = BatchWriter(store, metrics, self._signal_progress)
        self._patience = Patience(_ANSWER_SECONDS)
        self._rereader = Rereader(
            cluster.sources, store, self._batch_writer, poll, monotonic, self._patience
        )
        self._paces = {
            source.name: Pace(poll.interval, poll.longest_pause) for source in cluster.sources
        } | {
            source.name: Pace(poll.associations_interval, poll.associations_interval, poll.interval)
            for source in cluster.associations
        }
        self._sources = frozenset(self._paces)  # whose failures are stored
        metrics.begin(cluster.name, self._sources)
        for name, pace in self._paces.items():
            metrics.poll_interval.labels(cluster.name, name).set(pace.interval)
        self._live: LiveMeasurement | None = None
        if time_series is not None:
            tsdb = cluster.tsdb
            self._live = LiveMeasurement(
                store, time_series, store.policy, tsdb.scrape_interval, self._signal_progress
            )
            # Files cost less to read than a database, and show a run of this machine at once.
            live_interval = tsdb.live if tsdb.url else poll.interval
            self._paces["running jobs"] = Pace(live_interval, poll.longest_pause)
            self._paces["measurements"] = Pace(poll.interval, poll.longest_pause)
        self._causes = Causes(store, messages)
        self._comment_writers = [
            JobCommentWriter(store, each.name, each, metrics.job_comments)
            for each in cluster.sources
            if isinstance(each, CommentSource) and each.writes_comments
        ]
        self._paces["comments"] = Pace(poll.interval, poll.longest_pause)
        self._paces["sums"] = Pace(poll.rollup_interval, poll.rollup_interval, poll.interval)
        self._paces["retention"] = Pace(86400.0, 86400.0, poll.rollup_interval)
        self.last_progress = time.monotonic()  # monotonic time of the last sign of life
        self.has_polled = False  # whether every source has been read once
        self.fault = ""  # what ended the polling, until a cycle is complete again

    def check(self) -> Iterator[str]:
        """Missing permissions to see all jobs and users, one line each with what to grant."""
        directory = "" if self.cluster.tsdb.url else self.cluster.samples
        if directory and (problem := samples_problem(Path(directory))):
            yield f"{self.cluster.name}: samples: {problem}"
        for source in chain[AccountingSource | AssociationsSource](
            self.cluster.sources, self.cluster.associations
        ):
            try:
                for line in self._patience.each(source.name, source.check):
                    yield f"{self.cluster.name}: {source.name}: {line}"
            except Exception as error:  # the other sources are checked as well
                yield f"{self.cluster.name}: {source.name}: {_words(error)}"

    def run(self, stop: threading.Event) -> None:
        for line in self.check():
            log.warning("%s", line)
        while not stop.is_set():
            self.run_cycle(stop)
            stop.wait(self._pause_seconds())

    def _pause_seconds(self) -> float:
        soonest = min(pace.next_time for pace in self._paces.values())
        return min(max(soonest - self._monotonic(), 0.2), self._poll.interval)

    def run_cycle(self, stop: threading.Event | None = None) -> bool:
        """Do everything that is due, once; returns whether all of it succeeded."""
        results = [
            self._run_step(name, work) for name, work in self._steps(stop or threading.Event())
        ]
        self.has_polled = self.has_polled or all(results)
        self.fault = ""
        return all(results)

    def _steps(self, stop: threading.Event) -> Iterator[tuple[str, _Work]]:
        for source in self.cluster.sources:
            yield source.name, partial(self._poll_source, source, stop)
        for provider in self.cluster.associations:
            yield provider.name, partial(self._poll_associations, provider)
        yield "reread", partial(self._rereader.reread_due_sources, stop)
        read_scripts = partial(read_missing_scripts, self.cluster.sources, self.store)
        yield "scripts", partial(read_scripts, self._batch_writer, self._now(), stop)
        if self._live is not None:
            yield "running jobs", partial(self._measure_running, self._live)
            yield "measurements", partial(self._measure, stop)
        yield "messages", self._causes.look
        yield "comments", partial(self._write_comments, stop, self._now())
        yield "sums", partial(self._roll_up, stop)
        yield "retention", partial(delete_expired, self.store, self._retention, self._now())
        yield "queue", self._show_queue

    def _run_step(self, name: str, work: _Work) -> bool:
        """Do the work if it is due by its pace, if it has one; returns whether it succeeded.

        Only the end of Python ends it.
        """
        self._signal_progress()
        started, pace = self._monotonic(), self._paces.get(name)
        if pace and not pace.is_due(started):
            return True
        error: Exception | None = None
        try:
            succeeded = work() is not False
        except Exception as failure:  # the other steps must still run
            succeeded, error = False, failure
            try:
                self._record_failure(name, failure)
            except Exception as second:
                self._log_once.failure(name, "%s: its failure cannot be stored: %r", name, second)
        else:
            self._log_once.forget(name)
        if pace and error and is_database_failure(error):  # the step has not even been tried
            pace.next_time = started + min(pace.interval, _DATABASE_RETRY_SECONDS)
        elif pace:
            pace.schedule_next(started, self._monotonic(), succeeded=succeeded)
        return succeeded

    def _record_failure(self, step: str, error: Exception) -> None:
        """Log a failure once and count it; a source's is stored as well, for the pages."""
        name = self.cluster.name
        if not isinstance(error, SchedulerError):  # polls count these
            # Disk full, or the database locked or gone: nothing was committed, so nothing is lost.
            is_database = isinstance(error, sa.exc.DBAPIError)
            known = "tsdb" if isinstance(error, TimeSeriesError) else "other"
            self.metrics.step_errors.labels(name, step, "database" if is_database else known).inc()
            log.debug("%s: %s", name, step, exc_info=error)
        if step in self._sources and not is_database_failure(error):
            self._batch_writer.record_failure(step, _words(error))
        else:
            self._log_once.failure(step, "%s: %s: %s", name, step, _words(error))

    def _now(self) -> int:
        return int(self.store.clock())

    def _poll_source(self, source: AccountingSource, stop: threading.Event) -> None:
        started = self._monotonic()
        for _ in self.write_batches(source, source.name):
            if stop.is_set():  # written batches are kept; the next poll reads the rest
                return
        self._record_success(source.name)
        duration = self._monotonic() - started
        self.metrics.poll_duration.labels(self.cluster.name, source.name).set(duration)

    def _record_success(self, source: str) -> None:
        labels = (self.cluster.name, source)
        self._batch_writer.record_success(source)
        self.metrics.polls.labels(*labels, "ok").inc()
        self.metrics.last_success.labels(*labels).set(self.store.clock())

    def write_batches(
        self, source: AccountingSource, key: str, since: int | None = None
    ) -> Iterator[int]:
        """Write the records of a source in batches; yields the time up to which it has been read.

        `key` is the name of the watermark. With `since`, the reading is a backfill: it begins there
        unless it was begun before, and no job counts as vanished.
        """
        watermark = self.store.watermark(key)
        begin = since if since is not None else int(self.store.clock() - self._poll.first)
        unfinished = self.store.unfinished() if since is None else {}
        started = self._monotonic()
        begun = watermark or source.watermark_at(begin)
        for batch in self._patience.each(source.name, lambda: source.read(begun, unfinished)):
            self._batch_writer.write(batch, key, self._monotonic() - started)
            if batch.late:
                self._rereader.request(source.name)
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

    def _write_comments(self, stop: threading.Event, now: int) -> bool:
        return do_each(
            self._comment_writers, lambda writer: writer.run(now, stop, self._signal_progress)
        )

    def _poll_associations(self, source: AssociationsSource) -> None:
        started = self._monotonic()
        self.store.write_associations(source.read(), source.name, self._monotonic() - started)
        self._record_success(source.name)

    def _measure_running(self, live: LiveMeasurement) -> None:
        self._log_failed(live.run(self._now()))

    def _measure(self, stop: threading.Event) -> None:
        while not stop.is_set() and self.measure_due_jobs():
            self._signal_progress()

    def _signal_progress(self) -> None:
        self.last_progress = time.monotonic()

    def measure_due_jobs(self) -> int:
        """Measure some of the jobs that are due; returns how many. Raises TimeSeriesError."""
        if self._time_series is None:
            return 0
        name = self.cluster.name
        now = self._now()
        tsdb, on_progress = self.cluster.tsdb, self._signal_progress
        usages, failed = measure_due(
            self.store, self._time_series, self.store.policy, tsdb.scrape_interval, now, on_progress
        )
        self._log_failed(failed)
        count_measured(self.metrics, name, usages, now)
        source = self._time_series.source
        self._batch_writer.count_refused(
            Counter((source, rule) for usage in usages.values() for rule in usage.refused)
        )
        if self._live is not None:  # they have just been measured from their start
            self._live.forget(job for job in usages if job.end is None)
        return len(usages) + len(failed)

    def _log_failed(self, failed: Mapping[JobToMeasure, Exception]) -> None:
        for job, error in failed.items():
            self._log_once.warning(
                f"measuring {job.id}", "%s: job %s cannot be measured: %s",
                self.cluster.name, job.jobid, error,
            )  # fmt: skip

    def roll_up_due_days(self) -> int:
        """Rebuild all days that are due; returns how many."""
        self._mark_due_days()
        done = 0
        while days := self._rebuild_days(threading.Event()):
            done += len(days)
        return done

    def _roll_up(self, stop: threading.Event) -> None:
        self._mark_due_days()
        self._rebuild_days(stop)

    def _mark_due_days(self) -> None:
        name, now = self.cluster.name, self._now()
        with self.store.transaction() as db:
            mark_running(db, name, now)
            if self._retention.jobs:  # days whose jobs were deleted must not be recomputed as empty
                unmark_days(db, name, int(now - self._retention.jobs))

    def _rebuild_days(self, stop: threading.Event) -> list[int]:
        """Rebuild some days that are due, and return them; one that fails is left for later.

        Raises the error of the first one that failed, when the others are done.
        """
        name, now = self.cluster.name, self._now()
        with self.store.engine.connect() as db:
            days = due_days(db, name, _DAYS_PER_BATCH, now)

        def rebuild(day: int) -> None:
            if not stop.is_set():
                with self.store.transaction() as db:
                    roll_up(db, name, day, now)
                self._signal_progress()

        do_each(days, rebuild)
        return days

    def _show_queue(self) -> None:
        """Show what alerts and people need of waiting and running jobs."""
        with self.store.engine.connect() as db:
            gpus = held_gpus(db, self.cluster.name)
            waits = usual_waits(db, EVERYTHING, self.cluster.name, self._now())
        show_only(self.metrics, self.metrics.job_gpus, self.cluster.name, gpus)
        quantiles = {
            (row["partition"], row["username"], row["account"], quantile): row[column]
            for row in waits
            for quantile, column in (("0.5", "wait_p50_seconds"), ("0.9", "wait_p90_seconds"))
        }
        show_only(self.metrics, self.metrics.usual_wait, self.cluster.name, quantiles)


def _words(error: Exception) -> str:
    """What to tell of an error: the message if it is meant for people, else its kind as well."""
    if isinstance(error, sa.exc.DBAPIError):
        return f"the database: {error.orig}"
    return str(error) if isinstance(error, SchedulerError | TimeSeriesError) else repr(error)
