"""Reads Slurm's accounting in windows of time, and the controller's queue."""

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.runtime.values import duration
from batchjob.schedulers.accounting import (
    Batch,
    FindDiffering,
    UnfinishedJob,
    parse_epoch_watermark,
    with_jobids_like,
)
from batchjob.schedulers.records import JobKey, JobRecord
from batchjob.schedulers.slurm.accounting import queries
from batchjob.schedulers.slurm.accounting.exit_codes import with_known_exit_codes
from batchjob.schedulers.slurm.accounting.site_accounting import SiteAccounting
from batchjob.schedulers.slurm.accounting.unseen_jobs import ReadProgress, UnseenJobs
from batchjob.schedulers.states import JobState

log = logging.getLogger(__name__)

_JOB_ID = re.compile(r"\d+", re.ASCII)
_FEW_JOBS, _MANY_JOBS = 2_000, 10_000  # lengthen windows with fewer jobs, shorten those with more
_INITIAL_WINDOW, _MIN_WINDOW, _MAX_WINDOW = 3600, 300, 32 * 86_400  # window lengths in seconds
# How far the last window extends past the local time, which may lag behind the scheduler's.
_CLOCK_MARGIN = 2 * 86_400
_MAX_ID_QUERIES = 4  # if more queries by id would be needed, read the whole window
_GAP_SECONDS = 3600.0


@dataclass(frozen=True)
class WindowOptions:
    # fmt: off
    slurm_cluster: str = option("",
        "Name of the cluster in slurmdbd, if it is not the local one.")
    overlap: float = option(600.0,
        "How far each window overlaps the previous one, because slurmctld reports late.",
        parse=duration)
    queue_interval: float = option(queries.QUEUE_INTERVAL_SECONDS,
        "Minimum time between two queries of the controller for waiting and running jobs; 0: with "
        "each poll. It is never longer than the overlap.", parse=duration)
    trust_missing: bool = option(False,
        "Accept an answer in which most unfinished jobs are missing.")
    # fmt: on


class WindowSource(ABC):
    """Reads ended jobs in windows of time, and the others from the controller.

    There is a subclass for each way to query Slurm; each of its queries is one request.

    The watermark is a time from Slurm, never from our own clock: if that is wrong, windows are
    longer or empty, but no job is lost.
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
        # A job must still be in a window when the controller is asked for its exit code.
        # Polls are not exactly as far apart as they should be.
        self._queue_interval = 0.9 * min(options.queue_interval, self._overlap)
        self._window_seconds = _INITIAL_WINDOW
        self._completed_at: float | None = None  # monotonic time of the last complete reading
        self._whole: dict[JobKey, float] = {}  # ends of the jobs whose steps have all been read
        self._queue_read_at: float | None = None  # monotonic time
        self._queue_read_time = 0.0  # epoch seconds
        # By job id and submit time: what slurmctld had of ended jobs when the queue was read last.
        self._exit_codes: dict[tuple[str, int], int] = {}
        self._site: SiteAccounting | None = None  # None: not known yet
        # Ids of ended jobs read while it was not known, which are read once more.
        self._unsettled: dict[str, None] = {}
        self._unseen = UnseenJobs(
            self.name, self.query_by_id, self._overlap, options.trust_missing, monotonic
        )
        self._once = LogOnce(log)

    @abstractmethod
    def query_ended(self, begin: int, end: int, *, steps: bool) -> Iterator[queries.ParsedJob]:
        """Incarnations that ended between two times (epoch seconds).

        Without steps, accounting reads a row per job, not one per step. See `is_partial`.
        """

    @abstractmethod
    def query_by_id(self, jobids: Sequence[str]) -> Iterator[queries.ParsedJob]:
        """All incarnations of these raw job ids, with steps; at most 50 ids."""

    @abstractmethod
    def query_queue(self) -> Iterator[queries.ParsedJob]:
        """The controller's jobs that have not ended, and exit codes of some that have.

        A completing job has an end time, which must not be written: accounting will have it.
        """

    def add_exit_codes(self, parsed: Iterator[queries.ParsedJob]) -> Iterator[queries.ParsedJob]:
        """Jobs of accounting with the exit codes of the controller, where it has those."""
        for job, quarantined in parsed:
            if self._site is None and job and job.start_time is not None and job.end_time:
                self._unsettled[job.jobid] = None
            yield queries.ParsedJob(
                job and with_known_exit_codes(job, self._exit_codes), quarantined
            )

    def latest_time(self) -> int:
        """A time after all that Slurm may state, in epoch seconds.

        Asked for ids without an end, sacct and slurmrestd omit the jobs that were submitted after
        the time of their own clock, which may lag behind the scheduler's.
        """
        return int(self._clock()) + _CLOCK_MARGIN

    def watermark_at(self, since: int) -> str:
        """Watermarks are the epoch seconds up to which everything has been read."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        """The queue, windows of ended jobs up to now, and the jobs that are in neither."""
        now = int(self._clock())
        unfinished = with_jobids_like(unfinished, _JOB_ID)
        covered = min(parse_epoch_watermark(self.name, watermark), now)
        begin = max(covered - self._overlap, queries.EARLIEST_TIME)
        completed_at, self._completed_at = self._completed_at, None
        after_gap = completed_at is None or self._monotonic() - completed_at > _GAP_SECONDS
        if after_gap and now - begin > self._window_seconds and unfinished:
            self._unseen.check_visible(unfinished)
        progress = ReadProgress(begin, covered, dict(unfinished), overdue=self._unseen.overdue)
        for batch in self._read_queue(progress):
            yield batch._replace(watermark=str(covered), covered_until=covered)
        for end in self._window_ends(begin, now) if after_gap else ():
            for batch, last in self._read_window(begin, end, progress, steps=True):
                if last:  # More may still be recorded after the latest time that Slurm stated.
                    covered = max(covered, min(end, progress.newest))
                yield batch._replace(watermark=str(covered), covered_until=end)
            begin = end
        # Of a window that follows on another, most jobs are known with their steps.
        for batch, _ in self._read_window(begin, now + _CLOCK_MARGIN, progress, steps=after_gap):
            # The watermark stays until it is known that nothing is missing.
            yield batch._replace(watermark=str(covered), covered_until=begin)
        if progress.is_queue_known:
            for batch in self._unseen.query_missing(
                progress, unfinished, first=completed_at is None
            ):
                yield batch._replace(watermark=str(covered), covered_until=begin)
        for batch in self._read_unsettled():
            yield batch._replace(watermark=str(covered), covered_until=begin)
        covered = max(covered, min(progress.newest, now))
        self._completed_at, self._window_seconds = self._monotonic(), _INITIAL_WINDOW
        yield Batch((), (), str(covered), now, late=progress.late)

    def _read_unsettled(self) -> Iterator[Batch]:
        """Some of the ended jobs that were read before the site's configuration was known."""
        if self._site is None or not self._unsettled:
            return
        ids = list(islice(self._unsettled, _MAX_ID_QUERIES * queries.MAX_IDS_PER_QUERY))
        batch = self._read_by_id(ids)
        yield batch._replace(jobs=tuple(job for job in batch.jobs if job.end_time is not None))
        for jobid in ids:
            del self._unsettled[jobid]

    def reread(self, since: int, find_differing: FindDiffering) -> Iterator[Batch]:
        """Jobs that ended since then and differ from the database."""
        now = int(self._clock())
        begin = max(since, queries.EARLIEST_TIME)
        # _adapt_window() changes the length of the windows as they are read.
        for end in chain(self._window_ends(begin, now), (now + _CLOCK_MARGIN,)):
            job_count = 0
            wanted: set[JobKey] = set()
            for batch in queries.split_batches(self.query_ended(begin, end, steps=False)):
                job_count += len(batch.jobs)
                wanted |= find_differing(
                    [
                        queries.without_uncertain(job)._replace(cpu_at_least=job.cpu_at_least)
                        if queries.is_partial(job, begin, steps=False)
                        else job
                        for job in batch.jobs
                    ]
                )
            for detailed in self._query_with_steps(begin, end, wanted):
                kept = tuple(job for job in detailed.jobs if job.key in wanted)
                yield detailed._replace(jobs=kept, covered_until=begin)
            begin = end
            self._adapt_window(job_count)
            yield Batch((), (), "", min(end, now))
        self._window_seconds = _INITIAL_WINDOW

    def _query_with_steps(
        self, begin: int, end: int, wanted: Collection[JobKey]
    ) -> Iterator[Batch]:
        """Some jobs of a window with their steps, by id unless there are many."""
        ids = list({key.jobid for key in wanted})
        if len(ids) > _MAX_ID_QUERIES * queries.MAX_IDS_PER_QUERY:
            for batch in queries.split_batches(self.query_ended(begin, end, steps=True)):
                yield self._with_all_steps(batch, begin, steps=True)
            return
        yield self._read_by_id(ids)

    def _read_by_id(self, ids: Sequence[str]) -> Batch:
        return queries.collect_batch(
            chain.from_iterable(
                self.query_by_id(ids[at : at + queries.MAX_IDS_PER_QUERY])
                for at in range(0, len(ids), queries.MAX_IDS_PER_QUERY)
            )
        )

    def _with_all_steps(self, batch: Batch, begin: int, *, steps: bool) -> Batch:
        """Read by id the jobs of which the answer of a window may lack something, each once.

        What is not certain of those that have been read before is left out, and stays as it is.
        """
        jobs = {job.key: job for job in batch.jobs}
        partial = {job.key for job in batch.jobs if queries.is_partial(job, begin, steps=steps)}
        unread = {key for key in partial if self._whole.get(key) != jobs[key].end_time}
        jobs |= {key: queries.without_uncertain(jobs[key]) for key in partial}
        read = self._read_by_id(sorted({key.jobid for key in unread}))
        # Steps of a resized job stay in its first record until they end.
        jobs |= {
            job.key: job for job in read.jobs if job.key in unread or job.state is JobState.RESIZED
        }
        not_found = unread - {job.key for job in read.jobs}
        self._whole |= {
            key: job.end_time
            for key, job in jobs.items()
            if job.end_time and key not in not_found and not self._may_change(job, job.end_time)
        }
        quarantined = (*batch.quarantined, *read.quarantined)
        return batch._replace(jobs=tuple(jobs.values()), quarantined=quarantined)

    def _may_change(self, job: JobRecord, end: float) -> bool:
        """Whether steps have not ended, or the controller may still tell the exit code."""
        is_code_open = job.exit_code is None and job.exit_code_or_128_more is not None
        # Ends are whole seconds, rounded down.
        return (is_code_open and end + 1 >= self._queue_read_time) or any(
            step.end_time is None for step in job.steps
        )

    def _window_ends(self, begin: int, now: int) -> Iterator[int]:
        """Ends of windows; the last window is at most one window long."""
        while now - begin > self._window_seconds:
            begin += self._window_seconds
            yield begin

    def _adapt_window(self, job_count: int) -> None:
        if job_count < _FEW_JOBS:
            self._window_seconds = min(self._window_seconds * 2, _MAX_WINDOW)
        elif job_count > _MANY_JOBS:
            self._window_seconds = max(self._window_seconds // 2, _MIN_WINDOW)

    def _read_queue(self, progress: ReadProgress) -> Iterator[Batch]:
        """Waiting and running jobs; accounting is read even if the controller does not answer."""
        now = self._monotonic()
        if self._queue_read_at is not None and now - self._queue_read_at < self._queue_interval:
            return
        try:
            yield from self._read_live(progress)
        except SchedulerError as error:  # at once, or where the answer ends within a row
            self._once.failure("queue", "%s: pending and running jobs: %s", self.name, error)
            return
        self._once.forget("queue")
        self._queue_read_at = now
        progress.is_queue_known = True

    def _read_live(self, progress: ReadProgress) -> Iterator[Batch]:
        found = self.query_queue()
        self._queue_read_time = self._clock()
        self._exit_codes = {}
        for batch in queries.split_batches(found):
            known = [job for job in batch.jobs if job.state.is_live]
            self._exit_codes |= {
                (job.jobid, job.submit_time): job.exit_code
                for job in batch.jobs
                if job.exit_code is not None
            }
            live = tuple(job for job in known if job.end_time is None)
            progress.add_batch(batch._replace(jobs=live))
            for job in known:
                progress.missing.pop(job.jobid, None)
                if job.end_time is not None:
                    continue
                if job.start_time is not None:
                    progress.running[job.jobid] = job
                elif not job.submit_line:
                    progress.waiting[job.jobid] = job
            yield batch._replace(jobs=live)

    def _read_window(
        self, begin: int, end: int, progress: ReadProgress, *, steps: bool
    ) -> Iterator[tuple[Batch, bool]]:
        """A window in batches, and whether each is the last one.

        After a failure the next reading begins with shorter windows.
        """
        before = progress.jobs
        try:
            found = queries.split_batches(self.query_ended(begin, end, steps=steps))
            batch = self._with_all_steps(next(found), begin, steps=steps)
            for following in found:
                progress.add_batch(batch)
                yield batch, False
                batch = self._with_all_steps(following, begin, steps=steps)
        except SchedulerError:
            self._window_seconds = max(self._window_seconds // 2, _MIN_WINDOW)
            raise
        progress.add_batch(batch)
        yield batch, True
        next_begin = progress.newest - self._overlap
        self._whole = {key: end for key, end in self._whole.items() if end >= next_begin}
        self._adapt_window(progress.jobs - before)
