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

_STEP = 60.0  # seconds; the clock is adjusted by less under NTP
_PAUSE = 3600.0
# After this many readings in a row, an hour apart, without late records, no more are expected.
_QUIET_READINGS = 2


class Rereading:
    """Decides which of a cluster's sources are read again, and reads them."""

    def __init__(
        self,
        sources: Sequence[AccountingSource],
        store: Store,
        writer: BatchWriter,
        poll: PollOptions,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        live: Callable[[], None],
    ) -> None:
        """`live` is called after each batch, as a sign of life."""
        self._sources = sources
        self._store = store
        self._writer = writer
        self._poll = poll
        self._clock = clock
        self._monotonic = monotonic
        self._live = live
        self._clock_offset = clock() - monotonic()
        self._pace = Pace(_PAUSE, poll.longest_pause)
        self._wanted: dict[str, int] = {}  # source → remaining readings that must find nothing
        self._wanted_whole: set[str] = set()  # sources for which one day is not enough

    def want(self, source: str) -> None:
        """Records came late: read the last day again, soon."""
        self._wanted[source] = _QUIET_READINGS
        self._pace.next = -math.inf

    def some(self, stop: threading.Event) -> bool:
        """Read what is due to be read again; returns whether all of it succeeded."""
        self._notice_steps()
        begun, now = self._monotonic(), int(self._clock())
        first = self._store.first_time()
        if not self._poll.reread or not self._pace.due(begun) or first is None:
            return True
        since = int(max(now - self._poll.reread, first - self._poll.first))
        well = True
        for source in self._sources:
            if isinstance(source, RereadableSource) and not stop.is_set():
                well &= self._reread_one(source, source.name, since, now, stop)
        self._pace.after(begun, self._monotonic(), well=well)
        return well

    def _reread_one(
        self, source: RereadableSource, name: str, since: int, now: int, stop: threading.Event
    ) -> bool:
        key = f"{name}.reread"
        last, wanted = self._store.watermark(key), name in self._wanted
        whole = not last or not _night(now) <= int(last) <= now + _STEP
        whole = whole or name in self._wanted_whole
        if not whole and not wanted:
            return True
        if not whole:  # late records are usually of the last day; the rest is found at night
            since = max(since, now - 86_400)
        begun, found = self._monotonic(), 0
        try:
            if last or wanted:  # otherwise it has just been read for the first time
                for batch in source.reread(since, self._store.differing):
                    found += len(batch.jobs)
                    self._writer.write(batch._replace(watermark=last), key, 0.0)
                    self._live()
                    if stop.is_set():
                        return True
        except SchedulerError as error:
            self._writer.failed(key, str(error))
            return False
        done = str(now) if whole else last
        self._store.write(Batch((), (), done, now), key, self._monotonic() - begun)
        self._wanted_whole.discard(name)
        left = _QUIET_READINGS if found else self._wanted.get(name, 1) - 1
        if left:  # more may still arrive
            self._wanted[name] = left
        else:
            self._wanted.pop(name, None)
        self._writer.succeeded(key)
        return True

    def _notice_steps(self) -> None:
        """After the clock was set, jobs may have ended in windows that were already read."""
        offset = self._clock() - self._monotonic()
        step, self._clock_offset = offset - self._clock_offset, offset
        if abs(step) > _STEP:
            how = "forward" if step > 0 else "back"
            log.warning(
                "%s: the clock was set %s by %.0f s; jobs that ended in the last days are "
                    "read again",
                self._store.cluster, how, abs(step),
            )  # fmt: skip
            for source in self._sources:
                self.want(source.name)
                self._wanted_whole.add(source.name)


def _night(now: float) -> float:
    """The last 3 o'clock of this machine's time zone."""
    local = datetime.fromtimestamp(now).astimezone()
    night = local.replace(hour=3, minute=0, second=0, microsecond=0)
    return (night if night <= local else night - timedelta(days=1)).timestamp()
