"""Unfinished jobs that are neither among the ended ones nor in the controller's queue.

Accounting is queried for them by id: it may be late, the jobs may be gone, or slurmctld may have
lost their end.
"""

import heapq
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchjob.runtime.log import LogOnce
from batchjob.schedulers.accounting import Batch, Unfinished, missing, vanished
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.slurm.accounting.queries import (
    IDS_AT_ONCE,
    QUEUE_SECONDS,
    SlurmQueries,
    one_batch,
)
from batchjob.schedulers.states import JobState

log = logging.getLogger(__name__)


class RunningJob(NamedTuple):
    """A job that has started, according to the controller."""

    submit_time: int
    state: JobState
    state_word: str


@dataclass
class Reading:
    """What one reading has seen so far."""

    begin: int  # start of the first window of ended jobs
    newest: int  # the latest time stated by Slurm itself
    absent: dict[str, Unfinished]  # unfinished jobs that were in no answer
    running: dict[str, RunningJob] = field(default_factory=dict)
    overdue: Collection[str] = ()  # ids missing for longer than the overlap
    # Accounting reported the end of a job late, so other ends may have been missed.
    late: bool = False
    queue_known: bool = False  # the controller was queried and answered
    jobs: int = 0

    def note(self, batch: Batch) -> None:
        """Remove the jobs of an answer from the missing ones, and note their times."""
        self.jobs += len(batch.jobs)
        for job in batch.jobs:
            known = self.absent.get(job.jobid)
            if known is not None and known.submit_time == job.submit_time:
                del self.absent[job.jobid]
                if job.end_time is not None:
                    self.late |= job.end_time < self.begin or job.jobid in self.overdue
            latest = job.end_time or job.start_time or job.submit_time
            self.newest = max(self.newest, int(latest))


class UnseenJobs:
    """Remembers since when jobs are missing, and queries some of them in each cycle."""

    def __init__(
        self,
        name: str,
        queries: SlurmQueries,
        overlap: int,
        trust_missing: bool,
        monotonic: Callable[[], float],
    ) -> None:
        """`overlap`: seconds by which accounting may be late."""
        self._name = name
        self._queries = queries
        self._overlap = overlap
        self._trust_missing = trust_missing
        self._monotonic = monotonic
        self._asked: dict[str, int] = {}  # job id -> number of the last query that included it
        self._questions = 0
        self._absent_since: dict[str, float] = {}
        self.overdue: set[str] = set()  # missing for at least `overlap` seconds
        self._once = LogOnce(log)

    def expect(self, unfinished: Mapping[str, Unfinished]) -> None:
        """Check that known jobs are still visible, before much is read and the watermark moved.

        Raises ShrunkenError if most of the jobs known to be unfinished are not in the answer.
        """
        some = {jobid: unfinished[jobid] for jobid in _spread(list(unfinished))}
        found = _keys(one_batch(self._queries.by_id(list(some))))
        gone = missing(some, found)
        vanished(self._name, gone, some, nothing_seen=not found, trust=self._trust_missing)

    def ask(
        self, read: Reading, unfinished: Mapping[str, Unfinished], *, first: bool
    ) -> Iterator[Batch]:
        """Query accounting for some missing jobs, and for some running ones.

        Of running jobs, accounting has the steps, which the controller does not report.
        """
        now = self._monotonic()
        # Jobs may have been missing since before this process started.
        since = now - self._overlap if first else now
        self._absent_since = {id_: self._absent_since.get(id_, since) for id_ in read.absent}
        self.overdue = {
            id_ for id_, since in self._absent_since.items() if now - since >= self._overlap
        }
        asked = self._next_ids(read)
        if not asked:
            return
        batch = one_batch(self._queries.by_id(asked))
        absent = {jobid: read.absent[jobid] for jobid in asked if jobid in read.absent}
        found = {job.jobid: job for job in batch.jobs if _is(job, absent)}
        gone = tuple(jobid for jobid in absent if jobid not in found and jobid in self.overdue)
        share = len(absent) / (len(read.absent) or 1)
        gone = vanished(
            self._name,
            gone,
            unfinished,
            nothing_seen=not read.jobs and not found,
            trust=self._trust_missing,
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

    def _next_ids(self, read: Reading) -> list[str]:
        """Ids to query: missing jobs first, each in its turn."""
        candidates = [*read.absent, *(jobid for jobid in read.running if jobid not in read.absent)]
        self._asked = {jobid: self._asked.get(jobid, 0) for jobid in candidates}
        chosen = heapq.nsmallest(
            IDS_AT_ONCE,
            candidates,
            key=lambda jobid: (jobid not in read.absent, self._asked[jobid]),
        )
        self._questions += 1
        self._asked.update(dict.fromkeys(chosen, self._questions))
        return chosen

    def _runaway(self, read: Reading, alive: Sequence[str]) -> tuple[str, ...]:
        """Jobs that are running in accounting long after the controller forgot them."""
        now = self._monotonic()
        if len(alive) > 1 and not read.running:
            self._once.warning(
                "runaway",
                "%s: accounting has running jobs, but the controller has none",
                self._name,
            )
            return ()
        self._once.over("runaway")
        return tuple(
            jobid
            for jobid in alive
            if now - self._absent_since[jobid] > max(self._overlap, QUEUE_SECONDS)
        )


def _with_steps(job: JobRecord, running: RunningJob) -> JobRecord:
    """Add accounting's steps to a running job; everything else is the controller's."""
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
    """As many ids as one query may have, evenly taken from all of them."""
    return jobids[:: -(-len(jobids) // IDS_AT_ONCE)]


def _keys(batch: Batch) -> set[tuple[str, int]]:
    return {(job.jobid, job.submit_time) for job in batch.jobs}
