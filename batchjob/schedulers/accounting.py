"""The interface of a source of job records, and what sources share.

A source's module defines `ACCOUNTING`: its options (a frozen dataclass from which YAML keys, checks
and docs are generated) and `build()`. The poller calls `check()` once, `read()` in each cycle.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.records import Associations, JobKey, JobRecord, QuarantinedRow


class SourceError(SchedulerError):
    """The source could not be read, or its answer is not plausible; none of it may be used."""


class UnfinishedJob(NamedTuple):
    """A job that has not ended according to the database."""

    submit_time: int
    run: int
    start_time: float | None
    # What later records of the run need, as in JobRecord.
    state: str = ""
    elapsed_seconds: float | None = None  # when it was suspended
    suspended_seconds: int | None = None
    allocated_cpus: float | None = None
    allocated_memory_bytes: int | None = None
    allocated_gpus: int | None = None
    resized_cpu_seconds: float | None = None
    resized_gpu_seconds: float | None = None
    resized_memory_byte_seconds: float | None = None
    uid: int | None = None


class DeletedRecord(NamedTuple):
    """A record deleted by a user, to be deleted from the database as well."""

    source: str  # JobRecord.source of the record
    jobid: str
    uid: int | None  # delete only if the job is this user's; None: any user's


class Batch(NamedTuple):
    """What is written in one transaction, together with the watermark.

    Keys are unique within `jobs`. `vanished`: jobs that were queried one by one and are not known.
    """

    jobs: tuple[JobRecord, ...]
    quarantined: tuple[QuarantinedRow, ...]
    watermark: str  # opaque to the caller; `read()` continues from it
    covered_until: int  # epoch seconds; used for progress bars and to report the delay
    vanished: tuple[str, ...] = ()  # job ids from `unfinished`
    runaway: tuple[str, ...] = ()  # running according to accounting, unknown to the controller
    deleted: tuple[DeletedRecord, ...] = ()  # records of this source
    late: bool = False  # some records were late: read the last days again


class AccountingSource(Protocol):
    name: str  # the name in the registry, `JobRecord.source` and poll_state
    cluster: str

    def check(self) -> tuple[str, ...]:
        """Why this source may not see every job: a line for each reason, with what to grant."""

    def watermark_at(self, since: int) -> str:
        """The watermark from which `read()` covers everything since a time (epoch seconds)."""

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        """What is new since the watermark, oldest first; raises SchedulerError.

        `unfinished` maps job ids to what the database has of them. A job may be repeated, unchanged
        or corrected. There is at least one batch, if only to move the watermark.
        """


FindDiffering = Callable[[Sequence[JobRecord]], set[JobKey]]
"""The keys of those records that are missing from the database, or stored differently there."""


@runtime_checkable
class RereadableSource(Protocol):
    """A source that can be read again: records may arrive late or be edited."""

    def reread(self, since: int, find_differing: FindDiffering) -> Iterator[Batch]:
        """Jobs that ended since then (epoch seconds) and differ; raises SchedulerError.

        The watermarks of these batches are meaningless.
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
    script_bytes: int  # maximum size of a stored script; 0: store no scripts

    def script(self, job: SubmittedJob) -> str:
        """The script with which the job was submitted, "" for none; raises SchedulerError."""


class JobComment(NamedTuple):
    """The administrator's comment in the record of a job's latest run."""

    end_time: int | None
    text: str  # "" for none


@runtime_checkable
class CommentSource(Protocol):
    """A source that can write an administrator's comment into the records of jobs."""

    writes_comments: bool  # whether the site wants it

    def comments(self, jobids: Sequence[str]) -> Mapping[str, JobComment]:
        """Comments of jobs by id, without unknown ones; raises SchedulerError."""

    def write_comment(self, jobid: str, text: str) -> None:
        """Replace the comment of a job's latest run; raises SchedulerError."""


class AssociationsSource(Protocol):
    name: str
    cluster: str

    def check(self) -> tuple[str, ...]:
        """Why this source may not see every user: a line for each reason, with what to grant."""

    def read(self) -> Associations:
        """All accounts and members; raises SchedulerError, also if there are no members."""


class AccountingModule(NamedTuple):
    """What the module of a source defines, as `ACCOUNTING`."""

    options: type[Any]
    build: Callable[[str, Any], AccountingSource | AssociationsSource]
    """Creates the source of a cluster; neither queries nor opens anything. Raises SettingsError."""


def parse_epoch_watermark(source: str, watermark: str) -> int:
    """Parse a watermark that is a time; raises SourceError."""
    if watermark.isascii() and watermark.isdigit() and len(watermark) <= 12:
        return int(watermark)
    raise SourceError(f"{source}: expected a watermark in epoch seconds, got {watermark[:40]!r}")


def missing_jobids(
    unfinished: Mapping[str, UnfinishedJob], seen: Collection[tuple[str, int]]
) -> tuple[str, ...]:
    """The jobs of `unfinished` whose (id, submit time) was not seen."""
    return tuple(jobid for jobid, job in unfinished.items() if (jobid, job.submit_time) not in seen)


def with_jobids_like(
    unfinished: Mapping[str, UnfinishedJob], jobid_pattern: re.Pattern[str]
) -> dict[str, UnfinishedJob]:
    """The jobs whose ids match the pattern: a cluster may have local runs as well."""
    return {jobid: job for jobid, job in unfinished.items() if jobid_pattern.fullmatch(jobid)}


_CREDIBLE_COUNT, _CREDIBLE_SHARE = 20, 0.2


def check_vanished(
    source: str,
    gone: tuple[str, ...],
    unfinished: Mapping[str, UnfinishedJob],
    *,
    nothing_seen: bool,
    trust_missing: bool = False,
    queried_share: float = 1.0,
) -> tuple[str, ...]:
    """Return `gone` if it is credible; raises SourceError if too many jobs are gone.

    Jobs vanish one by one. If many vanish at once, or the answer has no job at all, the cause is a
    revoked right, another cluster's database, or a server that lost its own. If the scheduler was
    queried for only a part of the missing jobs, `queried_share` is the size of that part.
    """
    number = round(len(gone) / queried_share) if gone else 0
    too_many = number > _CREDIBLE_COUNT and number > _CREDIBLE_SHARE * len(unfinished)
    if gone and (too_many or nothing_seen) and not trust_missing:
        raise SourceError(
            f"{source}: {number} of {len(unfinished)} unfinished jobs are missing from the "
            f"answer (such as {gone[0]}); check that all jobs are still visible. If they are "
            "really gone, set"
            f" trust_missing for one cycle"
        )
    return gone
