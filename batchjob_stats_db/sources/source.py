"""What a source of job records is, and which ones there are.

A source's module has two names: `Options` (a frozen dataclass from which YAML keys, checks and
docs are made) and `build()`. The poller calls `check()` once at start, `read()` each cycle.
"""

import importlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

from batchjob.call import SchedulerError
from batchjob_stats_db.records import JobRecord, People, Quarantined


class SourceError(SchedulerError):
    """The source could not be read, or its answer cannot be true; nothing of it may be used."""


class ShrunkenError(SourceError):
    """Jobs that must be in the answer are missing in such numbers that the answer is wrong."""


class Unfinished(NamedTuple):
    """A job the database holds as not ended."""

    submit_time: int
    run: int
    start_time: int | None


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


class Source(Protocol):
    """One scheduler's account of its jobs."""

    name: str  # as in SOURCES; `JobRecord.source` and poll_state have it
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


class PeopleSource(Protocol):
    """Who belongs to which account."""

    name: str
    cluster: str

    def check(self) -> tuple[str, ...]:
        """What keeps this source from seeing everybody, one line each with what to grant."""

    def read(self) -> People:
        """The whole picture; raises SchedulerError, also for a picture without people."""


class Module(Protocol):
    """What a source's module offers."""

    Options: type[Any]

    def build(self, cluster: str, options: Any) -> Source | PeopleSource:
        """Make the source; nothing is called or opened yet. Raises SettingsError."""


class Entry(NamedTuple):
    """A row of the table: the name in the configuration, its module, one line of description."""

    name: str
    module: str
    description: str
    people: bool = False  # a PeopleSource, not a Source

    def load(self) -> Module:
        """Import the module."""
        return cast("Module", importlib.import_module(self.module))


_HERE = "batchjob_stats_db.sources"

SOURCES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("sacct", f"{_HERE}.sacct", "Slurm accounting, by the command sacct"),
        Entry("slurm_rest", f"{_HERE}.slurm_rest", "Slurm accounting, by slurmrestd"),
        Entry("sacctmgr", f"{_HERE}.sacctmgr", "Slurm's accounts and people", people=True),
        Entry("pbs_log", f"{_HERE}.pbs_log", "PBS and Torque accounting logs"),
        Entry("qstat", f"{_HERE}.qstat", "PBS jobs and history, by qstat -x -f -F json"),
        Entry("lsb_acct", f"{_HERE}.lsb_acct", "LSF's lsb.acct"),
        Entry("lsb_stream", f"{_HERE}.lsb_stream", "LSF's lsb.stream with JOB_FINISH2"),
        Entry("bjobs", f"{_HERE}.bjobs", "LSF's recent jobs, by bjobs -json"),
        Entry("runs", f"{_HERE}.runs", "local runs of this machine"),
        Entry("jsonl", f"{_HERE}.jsonl", "JSON lines from anything else"),
    )
}


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


def vanished(
    source: str,
    gone: tuple[str, ...],
    unfinished: Mapping[str, Unfinished],
    *,
    nothing_seen: bool,
    trust: bool,
) -> tuple[str, ...]:
    """`gone`, if it can be believed; raises ShrunkenError if it is too many to be true.

    Jobs go missing one by one. When many do at once, or the answer has no job at all, it is a
    right that was taken away, another cluster's database, or a server that lost its own.
    """
    many = len(gone) > _AT_ONCE and len(gone) > _SHARE * len(unfinished)
    if gone and (many or nothing_seen) and not trust:
        raise ShrunkenError(
            f"{source}: {len(gone)} of {len(unfinished)} unfinished jobs are missing in the answer"
            f" (such as {gone[0]}); may all jobs still be seen? If they are really gone, set"
            f" trust_missing for one cycle"
        )
    return gone
