"""Reads sources again: when, and for what.

Records of ended jobs may have come late, or been edited. They are read again each night, after the
clock was set, and whenever a source reports late records. The time of the last complete reading is
stored in the database, as the watermark of `<source>.reread`.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import (
    AccountingSource,
    Batch,
    RereadableSource,
    ScriptSource,
    SubmittedJob,
)
from batchjob_stats_db.database import scripts
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.days import DAY
from batchjob_stats_db.isolation import Patience, do_each, is_database_failure
from batchjob_stats_db.poller.batch_writer import BatchWriter
from batchjob_stats_db.poller.options import PollOptions

log = logging.getLogger(__name__)

_SLOW_FACTOR = 4  # minimum interval, as a multiple of the time the scheduler took to answer

_CLOCK_STEP_SECONDS = 60.0  # minimum; NTP adjusts the clock by less
_PAUSE_SECONDS = 3600.0
# After this many readings in a row, an hour apart, without late records, no more are expected.
_QUIET_READINGS = 2

_SCRIPTS_AT_ONCE = 2000
_CALLS_AT_ONCE = 100  # calls per cycle, one for each script
# Jobs that started earlier have none, or scripts were not kept at the time.
_LOOKBACK_SECONDS = 2 * DAY

# slurmctld sends the script after the job record, in a separate message (DBD_JOB_HEAVY): between
# the two, a query finds no script.
_SCRIPT_SETTLE_SECONDS = 60


class Pace:
    """When to query again: after the interval, later after failures, and less often if it is slow.

    In seconds of a monotonic clock. After a failure, a rarely queried source is retried sooner than
    its interval: from twice `retry` on.
    """

    def __init__(self, interval: float, longest: float, retry: float | None = None) -> None:
        self.interval = interval  # seconds
        self._retry = interval if retry is None else min(retry, interval)
        self._longest_pause = max(longest, interval)
        self._failures = 0
        self.next_time = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether it is time to query."""
        return now >= self.next_time

    def schedule_next(self, started: float, now: float, succeeded: bool) -> None:
        """Record the result, which determines the next time."""
        self._failures = 0 if succeeded else self._failures + 1
        pause = self.interval if succeeded else self._retry * 2 ** min(self._failures, 20)
        self.next_time = started + min(
            max(pause, _SLOW_FACTOR * (now - started)), self._longest_pause
        )


class Rereader:
    """Decides which of a cluster's sources are read again, and reads them."""

    def __init__(
        self,
        sources: Sequence[AccountingSource],
        store: Store,
        writer: BatchWriter,
        poll: PollOptions,
        monotonic: Callable[[], float],
        patience: Patience,
    ) -> None:
        self._sources = sources
        self._store = store
        self._writer = writer
        self._poll = poll
        self._monotonic = monotonic
        self._patience = patience
        self._clock_offset = store.clock() - monotonic()
        self._pace = Pace(_PAUSE_SECONDS, poll.longest_pause)
        # By source: the number of further readings that must find nothing.
        self._remaining_readings: dict[str, int] = {}
        self._full_rereads: set[str] = set()  # sources for which one day is not enough

    def request(self, source: str) -> None:
        """Read the last day again soon, because records arrived late."""
        self._remaining_readings[source] = _QUIET_READINGS
        self._pace.next_time = -math.inf

    def reread_due_sources(self, stop: threading.Event) -> bool:
        """Read what is due to be read again; returns whether all of it succeeded.

        Raises the first error that is no scheduler's, when the other sources are done.
        """
        self._detect_clock_step()
        started, now = self._monotonic(), int(self._store.clock())
        first = self._store.first_time()
        if not self._poll.reread or not self._pace.is_due(started) or first is None:
            return True
        since = int(max(now - self._poll.reread, first - self._poll.first))

        def reread(source: AccountingSource) -> bool:
            if stop.is_set() or not isinstance(source, RereadableSource):
                return True
            return self._reread_one(source, source.name, since, now, stop)

        try:
            succeeded = do_each(self._sources, reread)
        except Exception as error:
            if not is_database_failure(error):  # which is tried again soon
                self._pace.schedule_next(started, self._monotonic(), succeeded=False)
            raise
        self._pace.schedule_next(started, self._monotonic(), succeeded=succeeded)
        return succeeded

    def _reread_one(
        self, source: RereadableSource, name: str, since: int, now: int, stop: threading.Event
    ) -> bool:
        key = f"{name}.reread"
        last, wanted = self._store.watermark(key), name in self._remaining_readings
        full = not last or not _last_night(now) <= int(last) <= now + _CLOCK_STEP_SECONDS
        full = full or name in self._full_rereads
        if not full and not wanted:
            return True
        if not full:  # late records are usually of the last day; older ones are found at night
            since = max(since, now - 86_400)
        started, job_count = self._monotonic(), 0
        try:
            if last or wanted:  # otherwise it has just been read for the first time
                for batch in self._patience.each(
                    name, lambda: source.reread(since, self._store.changed_keys)
                ):
                    job_count += len(batch.jobs)
                    self._writer.write(batch._replace(watermark=last), key, 0.0)
                    if stop.is_set():
                        return True
        except SchedulerError as error:
            self._writer.record_failure(key, str(error))
            return False
        watermark = str(now) if full else last
        self._store.write(Batch((), (), watermark, now), key, self._monotonic() - started)
        self._full_rereads.discard(name)
        remaining = _QUIET_READINGS if job_count else self._remaining_readings.get(name, 1) - 1
        if remaining:  # more may still arrive
            self._remaining_readings[name] = remaining
        else:
            self._remaining_readings.pop(name, None)
        self._writer.record_success(key)
        return True

    def _detect_clock_step(self) -> None:
        """After the clock was set, jobs may have ended in windows that were already read."""
        offset = self._store.clock() - self._monotonic()
        step, self._clock_offset = offset - self._clock_offset, offset
        if abs(step) > _CLOCK_STEP_SECONDS:
            direction = "forward" if step > 0 else "back"
            log.warning(
                "%s: the clock was set %s by %.0f s; jobs that ended in the last days are "
                    "read again",
                self._store.cluster, direction, abs(step),
            )  # fmt: skip
            for source in self._sources:
                self.request(source.name)
                self._full_rereads.add(source.name)


def _last_night(now: float) -> float:
    """The last 3 o'clock of this machine's time zone."""
    local = datetime.fromtimestamp(now).astimezone()
    night = local.replace(hour=3, minute=0, second=0, microsecond=0)
    return (night if night <= local else night - timedelta(days=1)).timestamp()


def read_missing_scripts(
    sources: Sequence[AccountingSource],
    store: Store,
    writer: BatchWriter,
    now: int,
    stop: threading.Event,
) -> bool:
    """Request some batch scripts of started jobs, if the site stores them, the newest first.

    Returns whether all succeeded; raises the first error that is no scheduler's, when the other
    scripts are stored.
    """
    return do_each(
        [each for each in sources if isinstance(each, ScriptSource) and each.script_bytes],
        lambda source: _read_scripts_of(source, source.name, store, writer, now, stop),
    )


def _read_scripts_of(
    source: ScriptSource,
    name: str,
    store: Store,
    writer: BatchWriter,
    now: int,
    stop: threading.Event,
) -> bool:
    since, until = now - _LOOKBACK_SECONDS, now - _SCRIPT_SETTLE_SECONDS
    with store.engine.connect() as db:
        missing = scripts.jobs_without_script(
            db, store.cluster, name, since, until, _SCRIPTS_AT_ONCE
        )
    # The tasks of an array, and the parts of a het job, share a script.
    submissions: dict[object, dict[int, SubmittedJob]] = {}
    for number, job in missing:
        submission = (job.array_jobid or job.het_jobid or job.jobid, job.submit_time)
        submissions.setdefault(submission, {})[number] = job
    failure = ""

    def read(jobs: Mapping[int, SubmittedJob]) -> bool:
        nonlocal failure
        if stop.is_set() or failure:
            return not failure
        try:
            text = source.script(next(iter(jobs.values())))
        except SchedulerError as error:  # it would fail for the others as well
            failure = str(error)
            return False
        with store.transaction() as db:
            scripts.store(db, list(jobs), text, source.script_bytes)
        writer.on_progress()
        return True

    succeeded = do_each(list(submissions.values())[:_CALLS_AT_ONCE], read)
    if failure:
        writer.record_failure(f"{name}.scripts", failure)
    else:
        writer.record_success(f"{name}.scripts")
    return succeeded
