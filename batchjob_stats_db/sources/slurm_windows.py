"""Reading Slurm's accounting window by window, by whichever way it is asked.

Facts: sacct(1), "-s" and "-S", and the same in slurmdbd's queries behind slurmrestd: with states
given, a job that ended belongs to the window in which it ended, and one that waits, runs or is
suspended to each window in which it did. That also finds what a question without states leaves
out: jobs cancelled before they were eligible.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from batchjob.call import SchedulerError
from batchjob.logs import Once
from batchjob.settings import option
from batchjob.values import boolean, duration, text
from batchjob_stats_db.records import JobRecord, Quarantined, folded
from batchjob_stats_db.sources.runaway import Runaways
from batchjob_stats_db.sources.source import (
    Batch,
    Unfinished,
    epoch_watermark,
    missing,
    own,
    vanished,
)

log = logging.getLogger(__name__)

ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "TIMEOUT",
)  # fmt: skip
ALL = (*ENDED, "PENDING", "RUNNING", "SUSPENDED")

_JOB_ID = re.compile(r"\d+", re.ASCII)
_BATCH = 2000  # jobs written in one transaction
_FEW, _MANY = 4_000, 20_000  # jobs in a window, between which its length is right
_FIRST, _SHORTEST, _LONGEST = 3600, 300, 86_400  # seconds
_IDS_PER_CALL = 1000
EVER = 1_000_000_000  # Slurm takes no earlier time in epoch seconds


class Parsed(NamedTuple):
    """A job with its steps, or what was no job; each with what was wrong."""

    job: JobRecord | None
    quarantined: tuple[Quarantined, ...]


class Asking(Protocol):
    """One way to Slurm's accounting."""

    def window(self, begin: int, end: int, states: Sequence[str]) -> Iterator[Parsed]:
        """All incarnations in these states between two times (epoch seconds)."""

    def by_id(self, jobids: Sequence[str], end: int) -> Iterator[Parsed]:
        """All incarnations of these raw job ids until now."""

    def queue(self) -> Collection[str]:
        """Raw ids of the jobs that slurmctld has."""


@dataclass(frozen=True)
class WindowOptions:
    """How Slurm's accounting is read."""

    slurm_cluster: str = option(
        "", "The cluster's name in slurmdbd, where it is not the local one.", parse=text
    )
    overlap: float = option(
        600.0, "How far each window reaches back: slurmctld reports late.", parse=duration
    )
    runaway_interval: float = option(
        3600.0,
        "How often running jobs are compared with slurmctld's; 0 is never.",
        parse=duration,
    )
    trust_missing: bool = option(
        False, "Believe an answer in which most unfinished jobs are missing.", parse=boolean
    )


class Windows:
    """Reads windows of time, each long enough to be worth a call and short enough for memory."""

    def __init__(
        self,
        name: str,
        asking: Asking,
        options: WindowOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._asking = asking
        self._options = options
        self._clock = clock
        self._length = _FIRST
        self._once = Once(log)
        self._runaways = Runaways(options.runaway_interval, clock)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """Windows of ended jobs up to now, and in the last one the live jobs as well."""
        now = int(self._clock())
        unfinished = own(unfinished, _JOB_ID)
        covered = min(epoch_watermark(self._name, watermark), now)
        begin = max(covered - int(self._options.overlap), EVER)
        seen: set[tuple[str, int]] = set()
        if now - begin > self._length and unfinished:
            self._expect(now, unfinished)
        while now - begin > self._length:
            end = begin + self._length
            number = 0
            for batch in self._window(begin, end, max(covered, begin), ENDED):
                number += len(batch.jobs)
                seen |= _keys(batch)
                yield batch
            begin = end
            self._adapt(number)
        live: set[str] = set()
        for batch in self._window(begin, now, max(covered, begin), ALL):
            seen |= _keys(batch)
            live.update(job.jobid for job in batch.jobs if job.start_time and not job.end_time)
            # Until it is known that nothing is missing, the watermark stays.
            yield batch._replace(watermark=str(begin), covered_until=begin)
        yield self._rest(now, seen, live, unfinished)

    def _adapt(self, number: int) -> None:
        if number < _FEW:
            self._length = min(self._length * 2, _LONGEST)
        elif number > _MANY:
            self._length = max(self._length // 2, _SHORTEST)

    def _window(self, begin: int, end: int, covered: int, states: Sequence[str]) -> Iterator[Batch]:
        """A window in batches; the watermark moves with the last one."""
        found = self._asking.window(begin, end, states)
        batch = _batch(islice(found, _BATCH), covered)
        while following := list(islice(found, _BATCH)):
            yield batch
            batch = _batch(following, covered)
        until = max(covered, end)
        yield batch._replace(watermark=str(until), covered_until=until)

    def _expect(self, now: int, unfinished: Mapping[str, Unfinished]) -> None:
        """Before much is read and the watermark moved: do we still see what we saw?

        Raises ShrunkenError if most of the jobs known to be unfinished are not in the answer.
        """
        some = dict(islice(unfinished.items(), _IDS_PER_CALL))
        found = _keys(_batch(self._by_id(list(some), now), now))
        self._vanished(missing(some, found), some, nothing_seen=not found)

    def _by_id(self, jobids: Sequence[str], now: int) -> Iterator[Parsed]:
        for at in range(0, len(jobids), _IDS_PER_CALL):
            yield from self._asking.by_id(jobids[at : at + _IDS_PER_CALL], now)

    def _rest(
        self,
        now: int,
        seen: Collection[tuple[str, int]],
        live: Collection[str],
        unfinished: Mapping[str, Unfinished],
    ) -> Batch:
        """What no window shows, asked for by id: held jobs, and those that are gone."""
        unseen = missing(unfinished, seen)
        batch = _batch(self._by_id(unseen, now), now)
        found = _keys(batch)
        gone = missing({jobid: unfinished[jobid] for jobid in unseen}, found)
        gone = self._vanished(gone, unfinished, nothing_seen=not seen and not found)
        return batch._replace(vanished=gone, runaway=self._runaway(live))

    def _vanished(
        self, gone: tuple[str, ...], unfinished: Mapping[str, Unfinished], *, nothing_seen: bool
    ) -> tuple[str, ...]:
        trust = self._options.trust_missing
        return vanished(self._name, gone, unfinished, nothing_seen=nothing_seen, trust=trust)

    def _runaway(self, live: Collection[str]) -> tuple[str, ...]:
        """Accounting goes on where the controller does not answer."""
        try:
            runaway = self._runaways.of(live, self._asking.queue)
        except SchedulerError as error:
            self._once.warning("squeue", "runaway jobs are not looked for: %s", error)
            return ()
        self._once.over("squeue")
        return runaway


def _batch(parsed: Iterable[Parsed], covered: int) -> Batch:
    records: list[JobRecord] = []
    bad: list[Quarantined] = []
    for job, quarantined in parsed:
        bad += quarantined
        if job is not None:
            records.append(job)
    return Batch(folded(records), tuple(bad), str(covered), covered)


def _keys(batch: Batch) -> set[tuple[str, int]]:
    return {(job.jobid, job.submit_time) for job in batch.jobs}
