"""The contract of a source of job records, and what sources share.

A source's module ends in `ACCOUNTING`: its options (a frozen dataclass from which YAML keys, checks
and docs are made) and `build()`. The poller calls `check()` once at start, `read()` each cycle.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.records import Associations, JobKey, JobRecord, Quarantined, folded


class SourceError(SchedulerError):
    """The source could not be read, or its answer cannot be true; nothing of it may be used."""


class ShrunkenError(SourceError):
    """Jobs that must be in the answer are missing in such numbers that the answer is wrong."""


class Unfinished(NamedTuple):
    """A job the database holds as not ended."""

    submit_time: int
    run: int
    start_time: float | None


class Deleted(NamedTuple):
    """A record that somebody deleted, and wants gone here as well."""

    source: str  # of the record, JobRecord.source
    jobid: str
    uid: int | None  # only if it is this user's; None: whosever


class Batch(NamedTuple):
    """What is to be written in one transaction, the watermark with it.

    A key occurs once in `jobs`. Where `vanished` names jobs, the scheduler was asked for each of
    them and answered, and knows them no more.
    """

    jobs: tuple[JobRecord, ...]
    quarantined: tuple[Quarantined, ...]
    watermark: str  # opaque to all but the source; `read()` goes on from it
    covered_until: int  # epoch seconds; for a progress bar and for "how far behind are we"
    vanished: tuple[str, ...] = ()  # job ids out of `unfinished`
    runaway: tuple[str, ...] = ()  # said to run by accounting, unknown to the controller
    deleted: tuple[Deleted, ...] = ()  # records of this source's own
    late: bool = False  # its records came late: read the last days again


class AccountingSource(Protocol):
    """One scheduler's account of its jobs."""

    name: str  # as in the registry; `JobRecord.source` and poll_state have it
    cluster: str

    def check(self) -> tuple[str, ...]:
        """What keeps this source from seeing every job, one line each with what to grant."""

    def watermark_at(self, since: int) -> str:
        """The watermark from which `read()` covers everything since then (epoch seconds)."""

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """What is new since the watermark, oldest first; raises SchedulerError.

        `unfinished` maps job id to what the database has of it. A job may come again, unchanged
        or corrected. There is at least one batch, if only to move the watermark.
        """


Differing = Callable[[Sequence[JobRecord]], set[JobKey]]
"""Which of some records are not on record, or not in the same words."""


@runtime_checkable
class RereadableSource(Protocol):
    """A source that can say again what it said before: records come late, and are edited."""

    def reread(self, since: int, differing: Differing) -> Iterator[Batch]:
        """Jobs that ended since then (epoch seconds), those that differ; raises SchedulerError.

        The watermarks of these batches mean nothing.
        """


class SubmittedJob(NamedTuple):
    """A job that may have a batch script."""

    jobid: str
    submit_time: int
    array_jobid: str = ""
    array_index: int | None = None
    het_jobid: str = ""
    het_offset: int | None = None


@runtime_checkable
class ScriptSource(Protocol):
    """A source that knows the batch scripts of jobs."""

    script_bytes: int  # to be kept of each; 0: none are wanted

    def script(self, job: SubmittedJob) -> str:
        """The script that the job was submitted with, "" for none; raises SchedulerError."""


class AssociationsSource(Protocol):
    """Who belongs to which account."""

    name: str
    cluster: str

    def check(self) -> tuple[str, ...]:
        """What keeps this source from seeing everybody, one line each with what to grant."""

    def read(self) -> Associations:
        """The whole picture; raises SchedulerError, also for a picture without people."""


class AccountingModule(NamedTuple):
    """What a source's module offers, under the name `ACCOUNTING`."""

    options: type[Any]
    build: Callable[[str, Any], AccountingSource | AssociationsSource]
    """Makes the source of a cluster; calls and opens nothing yet. Raises SettingsError."""


def epoch_watermark(source: str, watermark: str) -> int:
    """The watermark of a source that goes by time; raises SourceError for any other text."""
    if watermark.isascii() and watermark.isdigit() and len(watermark) <= 12:
        return int(watermark)
    raise SourceError(f"{source}: expected a watermark in epoch seconds, got {watermark[:40]!r}")


def missing(
    unfinished: Mapping[str, Unfinished], seen: Collection[tuple[str, int]]
) -> tuple[str, ...]:
    """Job ids out of `unfinished` of which (id, submit time) was not seen."""
    return tuple(
        jobid for jobid, known in unfinished.items() if (jobid, known.submit_time) not in seen
    )


def own(unfinished: Mapping[str, Unfinished], form: re.Pattern[str]) -> dict[str, Unfinished]:
    """Those whose ids have this scheduler's form: a cluster may have local runs as well."""
    return {jobid: known for jobid, known in unfinished.items() if form.fullmatch(jobid)}


_AT_ONCE, _SHARE = 20, 0.2
_BATCH = 2000  # records


def vanished(
    source: str,
    gone: tuple[str, ...],
    unfinished: Mapping[str, Unfinished],
    *,
    nothing_seen: bool,
    trust: bool,
    asked: float = 1.0,
) -> tuple[str, ...]:
    """`gone`, if it can be believed; raises ShrunkenError if it is too many to be true.

    Jobs go missing one by one. When many do at once, or the answer has no job at all, it is a
    right that was taken away, another cluster's database, or a server that lost its own.
    Where the scheduler was asked for a part of the missing jobs, `asked` is how large it is.
    """
    number = round(len(gone) / asked) if gone else 0
    many = number > _AT_ONCE and number > _SHARE * len(unfinished)
    if gone and (many or nothing_seen) and not trust:
        raise ShrunkenError(
            f"{source}: {number} of {len(unfinished)} unfinished jobs are missing in the answer"
            f" (such as {gone[0]}); may all jobs still be seen? If they are really gone, set"
            f" trust_missing for one cycle"
        )
    return gone


class Snapshot(NamedTuple):
    """What a scheduler told that always tells all jobs that it knows."""

    source: str
    records: Sequence[JobRecord]
    quarantined: Sequence[Quarantined]
    now: int  # when it was asked, epoch seconds
    history_seconds: float  # how long it remembers ended jobs
    trust_missing: bool  # that most unfinished jobs may be missing


def batches_of(
    snapshot: Snapshot, watermark: str, unfinished: Mapping[str, Unfinished]
) -> Iterator[Batch]:
    """Batches of a limited size, the last with the jobs that are gone; raises ShrunkenError.

    Where the last reading is longer ago than the scheduler remembers ended jobs, those that were
    unfinished may all have ended, and be missing for that reason.
    """
    source, records, now = snapshot.source, snapshot.records, snapshot.now
    known = {(record.jobid, record.submit_time) for record in records}
    forgotten = now - epoch_watermark(source, watermark) > snapshot.history_seconds
    gone = vanished(
        source,
        missing(unfinished, known),
        unfinished,
        nothing_seen=not known,
        trust=snapshot.trust_missing or forgotten,
    )
    for at in range(0, len(records), _BATCH):
        yield Batch(folded(records[at : at + _BATCH]), (), watermark, now)
    yield Batch((), tuple(snapshot.quarantined), str(now), now, gone)
