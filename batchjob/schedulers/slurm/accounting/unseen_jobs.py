"""Unfinished jobs that are neither among the ended ones nor in the controller's queue.

Accounting is queried by id: it may be late, the jobs gone, or slurmctld may have lost their end.
"""

import heapq
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchjob.runtime.log import LogOnce
from batchjob.schedulers.accounting import Batch, UnfinishedJob, check_vanished, missing_jobids
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.slurm.accounting import queries
from batchjob.schedulers.states import JobState

log = logging.getLogger(__name__)


@dataclass
class ReadProgress:
    """What the current call of `WindowSource.read()` has seen so far."""

    begin: int  # start of the first window of ended jobs
    newest: int  # the latest time stated by Slurm itself
    missing: dict[str, UnfinishedJob]  # unfinished jobs that were in no answer
    # What the controller has of running jobs, and of waiting ones whose submit line it lacks.
    running: dict[str, JobRecord] = field(default_factory=dict)
    waiting: dict[str, JobRecord] = field(default_factory=dict)
    overdue: Collection[str] = ()  # ids missing for longer than the overlap
    # Accounting reported the end of a job late, so other ends may have been missed.
    late: bool = False
    is_queue_known: bool = False  # the controller was queried and answered
    jobs: int = 0

    def add_batch(self, batch: Batch) -> None:
        """Remove the jobs of an answer from the missing ones, and update the newest time."""
        self.jobs += len(batch.jobs)
        for job in batch.jobs:
            known = self.missing.get(job.jobid)
            if known is not None and known.submit_time == job.submit_time:
                del self.missing[job.jobid]
                if job.end_time is not None:
                    self.late |= job.end_time < self.begin or job.jobid in self.overdue
            self.newest = max(self.newest, int(job.end_time or job.start_time or job.submit_time))


class UnseenJobs:
    """Remembers since when jobs are missing, and queries some of them in each cycle."""

    def __init__(
        self,
        name: str,
        query_by_id: Callable[[Sequence[str]], Iterator[queries.ParsedJob]],
        overlap: int,
        trust_missing: bool,
        monotonic: Callable[[], float],
    ) -> None:
        """`overlap`: seconds by which accounting may be late."""
        self._name = name
        self._query_by_id = query_by_id
        self._overlap = overlap
        self._trust_missing = trust_missing
        self._monotonic = monotonic
        self._last_query: dict[str, int] = {}  # job id -> number of the last query that included it
        self._query_count = 0
        self._described: set[str] = set()  # waiting jobs of which accounting has been asked
        self._missing_since: dict[str, float] = {}
        self.overdue: set[str] = set()  # missing for at least `overlap` seconds
        self._once = LogOnce(log)

    def check_visible(self, unfinished: Mapping[str, UnfinishedJob]) -> None:
        """Check that known jobs are still visible, before much is read and the watermark moved.

        Raises SourceError if most of the jobs known to be unfinished are not in the answer.
        """
        # As many ids as one query may have, evenly taken from all of them.
        ids = list(unfinished)[:: -(-len(unfinished) // queries.MAX_IDS_PER_QUERY)]
        sample = {jobid: unfinished[jobid] for jobid in ids}
        answer = queries.collect_batch(self._query_by_id(ids))
        found = {(job.jobid, job.submit_time) for job in answer.jobs}
        gone = missing_jobids(sample, found)
        check_vanished(
            self._name, gone, sample, nothing_seen=not found, trust_missing=self._trust_missing
        )

    def query_missing(
        self, progress: ReadProgress, unfinished: Mapping[str, UnfinishedJob], *, first: bool
    ) -> Iterator[Batch]:
        """Query accounting for some missing jobs, for some waiting ones and some running ones.

        Of running jobs, accounting has the steps, which the controller does not report, and of
        waiting ones the submit line, for which each is queried once.
        """
        now = self._monotonic()
        # Jobs may have been missing since before this process started.
        since = now - self._overlap if first else now
        self._missing_since = {id_: self._missing_since.get(id_, since) for id_ in progress.missing}
        self.overdue = {
            id_ for id_, since in self._missing_since.items() if now - since >= self._overlap
        }
        queried = self._next_ids(progress)
        if not queried:
            return
        batch = queries.collect_batch(self._query_by_id(queried))
        self._described.update(job.jobid for job in batch.jobs if job.jobid in progress.waiting)
        missing = {jobid: progress.missing[jobid] for jobid in queried if jobid in progress.missing}
        found = {
            job.jobid: job
            for job in batch.jobs
            if job.jobid in missing and missing[job.jobid].submit_time == job.submit_time
        }
        gone = tuple(jobid for jobid in missing if jobid not in found and jobid in self.overdue)
        queried_share = len(missing) / (len(progress.missing) or 1)
        gone = check_vanished(
            self._name,
            gone,
            unfinished,
            nothing_seen=not progress.jobs and not found,
            trust_missing=self._trust_missing,
            queried_share=queried_share,
        )
        progress.add_batch(batch._replace(jobs=tuple(found.values())))
        unended = [jobid for jobid, job in found.items() if job.end_time is None]
        live = progress.waiting | progress.running
        details = tuple(
            _with_details(job, live[job.jobid])
            for job in batch.jobs
            if job.jobid in live and live[job.jobid].submit_time == job.submit_time
        )
        yield batch._replace(
            jobs=(*found.values(), *details),
            vanished=gone,
            runaway=self._find_runaway(progress, unended),
        )

    def _next_ids(self, progress: ReadProgress) -> list[str]:
        """Ids to query: missing jobs, waiting ones, running ones; those queried longest ago first.

        At most half of them are waiting, so that a long queue does not keep others from their turn.
        """
        self._described &= progress.waiting.keys()
        ids = (*progress.missing, *progress.waiting, *progress.running)
        last = self._last_query = {jobid: self._last_query.get(jobid, 0) for jobid in ids}
        new = (jobid for jobid in progress.waiting if jobid not in self._described)
        waiting = heapq.nsmallest(queries.MAX_IDS_PER_QUERY // 2, new, key=last.__getitem__)
        ranks = dict.fromkeys(progress.running, 2) | dict.fromkeys(waiting, 1)
        ranks |= dict.fromkeys(progress.missing, 0)
        chosen = heapq.nsmallest(
            queries.MAX_IDS_PER_QUERY, ranks, key=lambda jobid: (ranks[jobid], last[jobid])
        )
        self._query_count += 1
        self._last_query.update(dict.fromkeys(chosen, self._query_count))
        return chosen

    def _find_runaway(self, progress: ReadProgress, unended: Sequence[str]) -> tuple[str, ...]:
        """Jobs that are running in accounting long after the controller forgot them."""
        now = self._monotonic()
        if len(unended) > 1 and not progress.running:
            self._once.warning(
                "runaway",
                "%s: accounting has running jobs, but the controller has none",
                self._name,
            )
            return ()
        self._once.forget("runaway")
        return tuple(
            jobid
            for jobid in unended
            if now - self._missing_since[jobid] > max(self._overlap, queries.QUEUE_INTERVAL_SECONDS)
        )


def _with_details(job: JobRecord, live: JobRecord) -> JobRecord:
    """What only accounting has of a job that the controller knows: how it was submitted, its steps.

    Of a job that waits, the controller has the request.
    """
    names = _SUBMISSION if live.state is JobState.PENDING else (*_SUBMISSION, *_REQUEST)
    details: dict[str, Any] = {name: getattr(job, name) for name in names}
    return JobRecord(**details, state=live.state, state_word=live.state_word)


_SUBMISSION = (
    "cluster", "jobid", "submit_time", "source", "record_id", "sluid", "submit_line", "stdout_path",
    "restarts",
)  # fmt: skip
_REQUEST = (
    "requested_cpus", "requested_memory_bytes", "requested_gpus", "requested_nodes",
    "requested_resources", "steps",
)  # fmt: skip
