"""Reads ended jobs again: their records may have come late, or been edited.

Each night, after the clock was set, and whenever a source reports late records. The time of the
last complete reading is stored in the database, as the watermark of `<source>.reread`.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import AccountingSource, Batch, RereadableSource
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.batch_writer import BatchWriter
from batchjob_stats_db.poller.options import PollOptions
from batchjob_stats_db.poller.pace import Pace

log = logging.getLogger(__name__)

_CLOCK_STEP_SECONDS = 60.0  # minimum; NTP adjusts the clock by less
_PAUSE_SECONDS = 3600.0
# After this many readings in a row, an hour apart, without late records, no more are expected.
_QUIET_READINGS = 2


class Rereader:
    """Decides which of a cluster's sources are read again, and reads them."""

    def __init__(
        self,
        sources: Sequence[AccountingSource],
        store: Store,
        writer: BatchWriter,
        poll: PollOptions,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        on_progress: Callable[[], None],
    ) -> None:
        """`on_progress` is called after each batch."""
        self._sources = sources
        self._store = store
        self._writer = writer
        self._poll = poll
        self._clock = clock
        self._monotonic = monotonic
        self._on_progress = on_progress
        self._clock_offset = clock() - monotonic()
        self._pace = Pace(_PAUSE_SECONDS, poll.longest_pause)
        # By source: the number of further readings that must find nothing.
        self._remaining_readings: dict[str, int] = {}
        self._full_rereads: set[str] = set()  # sources for which one day is not enough

    def request(self, source: str) -> None:
        """Read the last day again soon, because records arrived late."""
        self._remaining_readings[source] = _QUIET_READINGS
        self._pace.next_time = -math.inf

    def reread_due_sources(self, stop: threading.Event) -> bool:
        """Read what is due to be read again; returns whether all of it succeeded."""
        self._detect_clock_step()
        started, now = self._monotonic(), int(self._clock())
        first = self._store.first_time()
        if not self._poll.reread or not self._pace.is_due(started) or first is None:
            return True
        since = int(max(now - self._poll.reread, first - self._poll.first))
        succeeded = True
        for source in self._sources:
            if isinstance(source, RereadableSource) and not stop.is_set():
                succeeded &= self._reread_one(source, source.name, since, now, stop)
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
                for batch in source.reread(since, self._store.changed_keys):
                    job_count += len(batch.jobs)
                    self._writer.write(batch._replace(watermark=last), key, 0.0)
                    self._on_progress()
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
        offset = self._clock() - self._monotonic()
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
