"""What Slurm says of its jobs: accounting of the ended ones, the controller of all others.

Facts: sacct(1), "-s" and "-S"; squeue(1); the queries of slurmdbd behind both sacct and slurmrestd.
With end states given, a job belongs to the window in which it ended, which slurmdbd reads as a
range of an index. With PENDING, RUNNING or SUSPENDED it reads its whole table of jobs. slurmctld
has those jobs in memory, and knows of held jobs that accounting hears about late.
"""

import heapq
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol

from batchjob.runtime.log import Once
from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.runtime.values import boolean, duration, text
from batchjob.schedulers.accounting import (
    Batch,
    Differing,
    Unfinished,
    epoch_watermark,
    missing,
    own,
    vanished,
)
from batchjob.schedulers.records import JobKey, JobRecord, Quarantined, folded
from batchjob.schedulers.states import JobState

log = logging.getLogger(__name__)

ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "TIMEOUT",
)  # fmt: skip

_JOB_ID = re.compile(r"\d+", re.ASCII)
_BATCH = 2000  # jobs written in one transaction
_FEW, _MANY = 2_000, 10_000  # jobs in a window, between which its length is right
_FIRST, _SHORTEST, _LONGEST = 3600, 300, 32 * 86_400  # seconds
_AHEAD = (
    2 * 86_400
)  # how far windows reach beyond our own time, which may be behind the scheduler's
_IDS = 50  # in one question: with 200, MariaDB reads the whole table instead of an index
_QUESTIONS = 4  # by id, beyond which a whole window costs less
_QUEUE_SECONDS = 60.0
_GAP_SECONDS = 3600.0
EVER = 1_000_000_000  # Slurm takes no earlier time in epoch seconds


class Parsed(NamedTuple):
    """A job with its steps, or what was no job; each with what was wrong."""

    job: JobRecord | None
    quarantined: tuple[Quarantined, ...] = ()


class SlurmQueries(Protocol):
    """One way to ask Slurm's accounting and its controller; each call is one request."""

    def ended(self, begin: int, end: int, *, steps: bool) -> Iterator[Parsed]:
        """Incarnations that ended between two times (epoch seconds).

        Without steps accounting reads a row for each job, not one for each step; what steps add
        up to (CPU time, peak memory) may then be missing.
        """

    def by_id(self, jobids: Sequence[str]) -> Iterator[Parsed]:
        """All incarnations of these raw job ids, with steps; at most 50 ids."""

    def queue(self) -> Iterator[Parsed]:
        """Jobs that the controller has and that have not ended.

        One that is completing has an end time, which is not to be written: accounting will say.
        """


@dataclass(frozen=True)
class WindowOptions:
    """How Slurm's accounting is read."""

    slurm_cluster: str = option(
        "", "The cluster's name in slurmdbd, where it is not the local one.", parse=text
    )
    overlap: float = option(
        600.0, "How far each window reaches back: slurmctld reports late.", parse=duration
    )
    trust_missing: bool = option(
        False, "Believe an answer in which most unfinished jobs are missing.", parse=boolean
    )


class _Running(NamedTuple):
    """A job that has started, as the controller says."""

    submit_time: int
    state: JobState
    state_word: str


@dataclass
class _Read:
    """What one reading has seen so far."""

    newest: int  # the latest time that Slurm itself stated
    absent: dict[str, Unfinished]  # unfinished jobs that no answer has shown
    running: dict[str, _Running] = field(default_factory=dict)
    overdue: Collection[str] = ()  # ids that the controller forgot longer ago than the overlap
    late: bool = False  # accounting has told the end of one of those: what else ended meanwhile?
    queue_known: bool = False  # whether the controller was asked, and answered
    jobs: int = 0

    def note(self, batch: Batch) -> None:
        """Take the jobs of an answer off the list of absent ones, and the time from them."""
        self.jobs += len(batch.jobs)
        for job in batch.jobs:
            known = self.absent.get(job.jobid)
            if known is not None and known.submit_time == job.submit_time:
                del self.absent[job.jobid]
                self.late |= job.end_time is not None and job.jobid in self.overdue
            self.newest = max(self.newest, job.end_time or job.start_time or job.submit_time)


class WindowReader:
    """Reads ended jobs in windows of time, and the others from the controller.

    The watermark is a time that Slurm stated, never our own: a clock that is wrong here makes
    windows longer or empty, and loses no job.
    """

    def __init__(
        self,
        name: str,
        queries: SlurmQueries,
        options: WindowOptions,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._queries = queries
        self._options = options
        self._clock = clock
        self._monotonic = monotonic
        self._overlap = int(options.overlap)
        self._length = _FIRST
        self._complete_at: float | None = None  # when all until then had been read
        self._queue_at: float | None = None
        self._asked: dict[str, int] = {}  # job id to the number of the question that had it last
        self._questions = 0
        self._absent_since: dict[str, float] = {}
        self._once = Once(log)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """The queue, windows of ended jobs up to now, and what neither of them shows."""
        now = int(self._clock())
        unfinished = own(unfinished, _JOB_ID)
        covered = min(epoch_watermark(self._name, watermark), now)
        begin = max(covered - self._overlap, EVER)
        complete_at, self._complete_at = self._complete_at, None
        gap = complete_at is None or self._monotonic() - complete_at > _GAP_SECONDS
        if gap and now - begin > self._length and unfinished:
            self._expect(unfinished)
        read = _Read(covered, dict(unfinished), overdue=self._overdue())
        for batch in self._queue(read):
            yield batch._replace(watermark=str(covered), covered_until=covered)
        for end in self._ends(begin, now) if gap else ():
            for batch, last in self._window(begin, end, read):
                if last:  # Beyond the times that Slurm has stated more may be to come.
                    covered = max(covered, min(end, read.newest))
                yield batch._replace(watermark=str(covered), covered_until=end)
            begin = end
        for batch, _ in self._window(begin, now + _AHEAD, read):
            # Until it is known that nothing is missing, the watermark stays.
            yield batch._replace(watermark=str(covered), covered_until=begin)
        if read.queue_known:
            for batch in self._rest(read, unfinished, first=complete_at is None):
                yield batch._replace(watermark=str(covered), covered_until=begin)
        covered = max(covered, min(read.newest, now))
        self._complete_at, self._length = self._monotonic(), _FIRST
        yield Batch((), (), str(covered), now, late=read.late)

    def reread(self, since: int, differing: Differing) -> Iterator[Batch]:
        """Jobs that ended since then and are not on record as accounting has them now."""
        now = int(self._clock())
        begin = max(since, EVER)
        for end in (*self._ends(begin, now), now + _AHEAD):
            number = 0
            wanted: set[JobKey] = set()
            for batch in _batches(self._queries.ended(begin, end, steps=False)):
                number += len(batch.jobs)
                wanted |= differing(batch.jobs)
            for full in self._whole(begin, end, wanted):
                kept = tuple(job for job in full.jobs if job.key in wanted)
                yield full._replace(jobs=kept, covered_until=begin)
            begin = end
            self._adapt(number)
            yield Batch((), (), "", min(end, now))

    def _whole(self, begin: int, end: int, wanted: Collection[JobKey]) -> Iterator[Batch]:
        """Some jobs of a window with their steps, by id unless they are many."""
        ids = list({key.jobid for key in wanted})
        if len(ids) > _QUESTIONS * _IDS:
            yield from _batches(self._queries.ended(begin, end, steps=True))
            return
        for at in range(0, len(ids), _IDS):
            yield _batch(self._queries.by_id(ids[at : at + _IDS]))

    def _ends(self, begin: int, now: int) -> Iterator[int]:
        """Ends of windows; what remains to now is at most one window long."""
        while now - begin > self._length:
            begin += self._length
            yield begin

    def _adapt(self, number: int) -> None:
        if number < _FEW:
            self._length = min(self._length * 2, _LONGEST)
        elif number > _MANY:
            self._length = max(self._length // 2, _SHORTEST)

    def _queue(self, read: _Read) -> Iterator[Batch]:
        """Jobs that wait and run; accounting goes on where the controller does not answer."""
        now = self._monotonic()
        if self._queue_at is not None and now - self._queue_at < _QUEUE_SECONDS:
            return
        try:
            found = self._queries.queue()
        except SchedulerError as error:
            self._once.warning("queue", "%s: jobs that wait and run: %s", self._name, error)
            return
        self._once.over("queue")
        self._queue_at = now
        read.queue_known = True
        for batch in _batches(found):
            live = tuple(job for job in batch.jobs if job.end_time is None)
            read.note(batch._replace(jobs=live))
            for job in batch.jobs:
                read.absent.pop(job.jobid, None)
                if job.start_time is not None and job.end_time is None:
                    running = _Running(job.submit_time, job.state, job.state_word)
                    read.running[job.jobid] = running
            yield batch._replace(jobs=live)

    def _window(self, begin: int, end: int, read: _Read) -> Iterator[tuple[Batch, bool]]:
        """A window in batches, and whether each is the last one.

        After a failure the next reading begins with shorter windows.
        """
        before = read.jobs
        try:
            found = _batches(self._queries.ended(begin, end, steps=True))
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

    def _expect(self, unfinished: Mapping[str, Unfinished]) -> None:
        """Before much is read and the watermark moved: do we still see what we saw?

        Raises ShrunkenError if most of the jobs known to be unfinished are not in the answer.
        """
        some = {jobid: unfinished[jobid] for jobid in _spread(list(unfinished))}
        found = _keys(_batch(self._queries.by_id(list(some))))
        trust = self._options.trust_missing
        gone = missing(some, found)
        vanished(self._name, gone, some, nothing_seen=not found, trust=trust)

    def _rest(
        self, read: _Read, unfinished: Mapping[str, Unfinished], *, first: bool
    ) -> Iterator[Batch]:
        """What accounting says of some jobs that nobody showed, and of some that run.

        Of those that run it has the steps, which the controller does not tell.
        """
        now = self._monotonic()
        since = now - self._overlap if first else now  # they may have been so before we began
        self._absent_since = {id_: self._absent_since.get(id_, since) for id_ in read.absent}
        asked = self._next_ids(read)
        if not asked:
            return
        batch = _batch(self._queries.by_id(asked))
        absent = {jobid: read.absent[jobid] for jobid in asked if jobid in read.absent}
        found = {job.jobid: job for job in batch.jobs if _is(job, absent)}
        overdue = self._overdue()
        gone = tuple(jobid for jobid in absent if jobid not in found and jobid in overdue)
        share = len(absent) / (len(read.absent) or 1)
        gone = vanished(
            self._name,
            gone,
            unfinished,
            nothing_seen=not read.jobs and not found,
            trust=self._options.trust_missing,
            asked=share,
        )
        read.note(batch._replace(jobs=tuple(found.values())))
        alive = [jobid for jobid, job in found.items() if job.end_time is None]
        steps = tuple(
            _with_steps(job, read.running[job.jobid])
            for job in batch.jobs
            if job.jobid in read.running and read.running[job.jobid].submit_time == job.submit_time
        )
        yield batch._replace(
            jobs=(*found.values(), *steps),
            vanished=gone,
            runaway=self._runaway(read, alive),
        )

    def _next_ids(self, read: _Read) -> list[str]:
        """Ids to ask accounting for: absent jobs first, and each in its turn."""
        candidates = [*read.absent, *(jobid for jobid in read.running if jobid not in read.absent)]
        self._asked = {jobid: self._asked.get(jobid, 0) for jobid in candidates}
        chosen = heapq.nsmallest(
            _IDS, candidates, key=lambda jobid: (jobid not in read.absent, self._asked[jobid])
        )
        self._questions += 1
        self._asked.update(dict.fromkeys(chosen, self._questions))
        return chosen

    def _overdue(self) -> set[str]:
        """Jobs absent for as long as accounting may be late."""
        now = self._monotonic()
        return {id_ for id_, since in self._absent_since.items() if now - since >= self._overlap}

    def _runaway(self, read: _Read, alive: Sequence[str]) -> tuple[str, ...]:
        """Jobs that accounting has as running long after the controller forgot them."""
        now = self._monotonic()
        if len(alive) > 1 and not read.running:
            self._once.warning(
                "runaway", "%s: accounting has running jobs, the controller none", self._name
            )
            return ()
        self._once.over("runaway")
        return tuple(
            jobid
            for jobid in alive
            if now - self._absent_since[jobid] > max(self._overlap, _QUEUE_SECONDS)
        )


def _with_steps(job: JobRecord, running: _Running) -> JobRecord:
    """What accounting adds to a running job; the rest is as the controller says."""
    return JobRecord(
        job.cluster, job.jobid, job.submit_time, running.state, running.state_word, job.source,
        record_id=job.record_id, sluid=job.sluid,
        requested_cpus=job.requested_cpus, requested_memory_bytes=job.requested_memory_bytes,
        requested_gpus=job.requested_gpus, requested_nodes=job.requested_nodes,
        requested_resources=job.requested_resources,
        submit_line=job.submit_line, stdout_path=job.stdout_path, restarts=job.restarts,
        steps=job.steps,
    )  # fmt: skip


def _is(job: JobRecord, unfinished: Mapping[str, Unfinished]) -> bool:
    known = unfinished.get(job.jobid)
    return known is not None and known.submit_time == job.submit_time


def _spread(jobids: Sequence[str]) -> Sequence[str]:
    """As many ids as one question may have, from all of them."""
    return jobids[:: -(-len(jobids) // _IDS)]


def _batches(parsed: Iterator[Parsed]) -> Iterator[Batch]:
    """An answer in batches, of which there is at least one."""
    yield _batch(islice(parsed, _BATCH))
    while following := list(islice(parsed, _BATCH)):
        yield _batch(following)


def _batch(parsed: Iterable[Parsed]) -> Batch:
    records: list[JobRecord] = []
    bad: list[Quarantined] = []
    for job, quarantined in parsed:
        bad += quarantined
        if job is not None:
            records.append(job)
    return Batch(folded(records), tuple(bad), "", 0)


def _keys(batch: Batch) -> set[tuple[str, int]]:
    return {(job.jobid, job.submit_time) for job in batch.jobs}
