"""Reads Slurm's accounting in windows of time, and the controller's queue beside it."""

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.runtime.values import boolean, duration, text
from batchjob.schedulers.accounting import Batch, Differing, Unfinished, epoch_watermark, own
from batchjob.schedulers.records import JobKey
from batchjob.schedulers.slurm.accounting.queries import (
    EVER,
    IDS_AT_ONCE,
    QUEUE_SECONDS,
    Parsed,
    batches,
    one_batch,
)
from batchjob.schedulers.slurm.accounting.unseen_jobs import Reading, RunningJob, UnseenJobs

log = logging.getLogger(__name__)

_JOB_ID = re.compile(r"\d+", re.ASCII)
_FEW, _MANY = 2_000, 10_000  # lengthen windows with fewer jobs, shorten those with more
_FIRST, _SHORTEST, _LONGEST = 3600, 300, 32 * 86_400  # window lengths in seconds
# How far the last window extends past the local time, which may lag behind the scheduler's.
_AHEAD = 2 * 86_400
_QUESTIONS = 4  # if more queries by id would be needed, read the whole window
_GAP_SECONDS = 3600.0


@dataclass(frozen=True)
class WindowOptions:
    """How Slurm's accounting is read."""

    slurm_cluster: str = option(
        "", "Name of the cluster in slurmdbd, if it is not the local one.", parse=text
    )
    overlap: float = option(
        600.0,
        "How far each window overlaps the previous one, because slurmctld reports late.",
        parse=duration,
    )
    trust_missing: bool = option(
        False, "Accept an answer in which most unfinished jobs are missing.", parse=boolean
    )


class WindowSource(ABC):
    """Reads ended jobs in windows of time, and the others from the controller.

    The watermark is a time that Slurm stated, never our own: a wrong clock here makes windows
    longer or empty, but loses no job.
    """

    name: str

    def __init__(
        self,
        cluster: str,
        options: WindowOptions,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self._clock = clock
        self._monotonic = monotonic
        self._overlap = int(options.overlap)
        self._length = _FIRST
        self._complete_at: float | None = None  # monotonic time of the last complete reading
        self._queue_at: float | None = None
        self._unseen = UnseenJobs(self.name, self, self._overlap, options.trust_missing, monotonic)
        self._once = LogOnce(log)

    @abstractmethod
    def ended(self, begin: int, end: int, *, steps: bool) -> Iterator[Parsed]:
        """See SlurmQueries."""

    @abstractmethod
    def by_id(self, jobids: Sequence[str]) -> Iterator[Parsed]:
        """See SlurmQueries."""

    @abstractmethod
    def queue(self) -> Iterator[Parsed]:
        """See SlurmQueries."""

    def watermark_at(self, since: int) -> str:
        """Watermarks are the epoch seconds up to which everything has been read."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """The queue, windows of ended jobs up to now, and the jobs that are in neither."""
        now = int(self._clock())
        unfinished = own(unfinished, _JOB_ID)
        covered = min(epoch_watermark(self.name, watermark), now)
        begin = max(covered - self._overlap, EVER)
        complete_at, self._complete_at = self._complete_at, None
        gap = complete_at is None or self._monotonic() - complete_at > _GAP_SECONDS
        if gap and now - begin > self._length and unfinished:
            self._unseen.expect(unfinished)
        read = Reading(begin, covered, dict(unfinished), overdue=self._unseen.overdue)
        for batch in self._live(read):
            yield batch._replace(watermark=str(covered), covered_until=covered)
        for end in self._ends(begin, now) if gap else ():
            for batch, last in self._window(begin, end, read):
                if last:  # More may still be recorded after the latest time that Slurm stated.
                    covered = max(covered, min(end, read.newest))
                yield batch._replace(watermark=str(covered), covered_until=end)
            begin = end
        for batch, _ in self._window(begin, now + _AHEAD, read):
            # The watermark stays until it is known that nothing is missing.
            yield batch._replace(watermark=str(covered), covered_until=begin)
        if read.queue_known:
            for batch in self._unseen.ask(read, unfinished, first=complete_at is None):
                yield batch._replace(watermark=str(covered), covered_until=begin)
        covered = max(covered, min(read.newest, now))
        self._complete_at, self._length = self._monotonic(), _FIRST
        yield Batch((), (), str(covered), now, late=read.late)

    def reread(self, since: int, differing: Differing) -> Iterator[Batch]:
        """Jobs that ended since then and differ from the database."""
        now = int(self._clock())
        begin = max(since, EVER)
        # _adapt() changes the length of the windows as they are read.
        for end in chain(self._ends(begin, now), (now + _AHEAD,)):
            number = 0
            wanted: set[JobKey] = set()
            for batch in batches(self.ended(begin, end, steps=False)):
                number += len(batch.jobs)
                wanted |= differing(batch.jobs)
            for full in self._whole(begin, end, wanted):
                kept = tuple(job for job in full.jobs if job.key in wanted)
                yield full._replace(jobs=kept, covered_until=begin)
            begin = end
            self._adapt(number)
            yield Batch((), (), "", min(end, now))
        self._length = _FIRST

    def _whole(self, begin: int, end: int, wanted: Collection[JobKey]) -> Iterator[Batch]:
        """Some jobs of a window with their steps, by id unless there are many."""
        ids = list({key.jobid for key in wanted})
        if len(ids) > _QUESTIONS * IDS_AT_ONCE:
            yield from batches(self.ended(begin, end, steps=True))
            return
        for at in range(0, len(ids), IDS_AT_ONCE):
            yield one_batch(self.by_id(ids[at : at + IDS_AT_ONCE]))

    def _ends(self, begin: int, now: int) -> Iterator[int]:
        """Ends of windows; the last window is at most one window long."""
        while now - begin > self._length:
            begin += self._length
            yield begin

    def _adapt(self, number: int) -> None:
        if number < _FEW:
            self._length = min(self._length * 2, _LONGEST)
        elif number > _MANY:
            self._length = max(self._length // 2, _SHORTEST)

    def _live(self, read: Reading) -> Iterator[Batch]:
        """Waiting and running jobs; accounting is read even if the controller does not answer."""
        now = self._monotonic()
        if self._queue_at is not None and now - self._queue_at < QUEUE_SECONDS:
            return
        try:
            found = self.queue()
        except SchedulerError as error:
            self._once.warning("queue", "%s: pending and running jobs: %s", self.name, error)
            return
        self._once.over("queue")
        self._queue_at = now
        read.queue_known = True
        for batch in batches(found):
            live = tuple(job for job in batch.jobs if job.end_time is None)
            read.note(batch._replace(jobs=live))
            for job in batch.jobs:
                read.absent.pop(job.jobid, None)
                if job.start_time is not None and job.end_time is None:
                    running = RunningJob(job.submit_time, job.state, job.state_word)
                    read.running[job.jobid] = running
            yield batch._replace(jobs=live)

    def _window(self, begin: int, end: int, read: Reading) -> Iterator[tuple[Batch, bool]]:
        """A window in batches, and whether each is the last one.

        After a failure the next reading begins with shorter windows.
        """
        before = read.jobs
        try:
            found = batches(self.ended(begin, end, steps=True))
            batch = next(found)
            for following in found:
                read.note(batch)
                yield batch, False
                batch = following
        except SchedulerError:
            self._length = max(self._length // 2, _SHORTEST)
            raise
        read.note(batch)
        yield batch, True
        self._adapt(read.jobs - before)
