"""The interface of a source of job records, and what sources share.

A source's module defines `ACCOUNTING`: its options (a frozen dataclass from which YAML keys, checks
and docs are generated) and `build()`. The poller calls `check()` once at start, `read()` in each
cycle.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.records import Associations, JobKey, JobRecord, Quarantined


class SourceError(SchedulerError):
    """The source could not be read, or its answer cannot be true; none of it may be used."""


class ShrunkenError(SourceError):
    """So many expected jobs are missing from the answer that it must be wrong."""


class Unfinished(NamedTuple):
    """A job that has not ended according to the database."""

    submit_time: int
    run: int
    start_time: float | None


class Deleted(NamedTuple):
    """A record deleted by a user, to be deleted from the database as well."""

    source: str  # JobRecord.source of the record
    jobid: str
    uid: int | None  # delete only if the job is this user's; None: any user's


class Batch(NamedTuple):
    """What is written in one transaction, together with the watermark.

    Keys are unique within `jobs`. `vanished` names jobs of which the scheduler said, when it was
    asked for each of them, that it does not know them any more.
    """

    jobs: tuple[JobRecord, ...]
    quarantined: tuple[Quarantined, ...]
    watermark: str  # opaque to the caller; `read()` continues from it
    covered_until: int  # epoch seconds; used for progress bars and to report the delay
    vanished: tuple[str, ...] = ()  # job ids from `unfinished`
    runaway: tuple[str, ...] = ()  # running according to accounting, unknown to the controller
    deleted: tuple[Deleted, ...] = ()  # records of this source
    late: bool = False  # some records were late: read the last days again


class AccountingSource(Protocol):
    """A source of one scheduler's job records."""

    name: str  # the name in the registry, `JobRecord.source` and poll_state
    cluster: str

    def check(self) -> tuple[str, ...]:
        """What keeps this source from seeing every job: a line for each, with what to grant."""

    def watermark_at(self, since: int) -> str:
        """The watermark from which `read()` covers everything since a time (epoch seconds)."""

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """What is new since the watermark, oldest first; raises SchedulerError.

        `unfinished` maps job ids to what the database has of them. A job may be repeated, unchanged
        or corrected. There is at least one batch, if only to move the watermark.
        """


Differing = Callable[[Sequence[JobRecord]], set[JobKey]]
"""Which of some records are not on record, or not in the same words."""


@runtime_checkable
class RereadableSource(Protocol):
    """A source that can be read again: records may arrive late or be edited."""

    def reread(self, since: int, differing: Differing) -> Iterator[Batch]:
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
    """A source that has the batch scripts of jobs."""

    script_bytes: int  # maximum size of a stored script; 0: store no scripts

    def script(self, job: SubmittedJob) -> str:
        """The script with which the job was submitted, "" for none; raises SchedulerError."""


class AssociationsSource(Protocol):
    """A source of accounts and their members."""

    name: str
    cluster: str

    def check(self) -> tuple[str, ...]:
        """What keeps this source from seeing everybody: a line for each, with what to grant."""

    def read(self) -> Associations:
        """All accounts and members; raises SchedulerError, also if there are no members."""


class AccountingModule(NamedTuple):
    """What the module of a source defines, as `ACCOUNTING`."""

    options: type[Any]
    build: Callable[[str, Any], AccountingSource | AssociationsSource]
    """Makes the source of a cluster; calls and opens nothing yet. Raises SettingsError."""


def epoch_watermark(source: str, watermark: str) -> int:
    """Parse the watermark of a source that goes by time; raises SourceError."""
    if watermark.isascii() and watermark.isdigit() and len(watermark) <= 12:
        return int(watermark)
    raise SourceError(f"{source}: expected a watermark in epoch seconds, got {watermark[:40]!r}")


def missing(
    unfinished: Mapping[str, Unfinished], seen: Collection[tuple[str, int]]
) -> tuple[str, ...]:
    """The jobs of `unfinished` whose (id, submit time) was not seen."""
    return tuple(
        jobid for jobid, known in unfinished.items() if (jobid, known.submit_time) not in seen
    )


def own(unfinished: Mapping[str, Unfinished], form: re.Pattern[str]) -> dict[str, Unfinished]:
    """The jobs whose ids have this scheduler's format: a cluster may have local runs as well."""
    return {jobid: known for jobid, known in unfinished.items() if form.fullmatch(jobid)}


_AT_ONCE, _SHARE = 20, 0.2


def vanished(
    source: str,
    gone: tuple[str, ...],
    unfinished: Mapping[str, Unfinished],
    *,
    nothing_seen: bool,
    trust: bool,
    asked: float = 1.0,
) -> tuple[str, ...]:
    """`gone`, if it is credible; raises ShrunkenError if too many jobs are gone.

    Jobs vanish one by one. If many vanish at once, or the answer has no job at all, the cause is a
    revoked right, another cluster's database, or a server that lost its own. If the scheduler was
    asked for a part of the missing jobs only, `asked` is the size of that part.
    """
    number = round(len(gone) / asked) if gone else 0
    many = number > _AT_ONCE and number > _SHARE * len(unfinished)
    if gone and (many or nothing_seen) and not trust:
        raise ShrunkenError(
            f"{source}: {number} of {len(unfinished)} unfinished jobs are missing from the "
            f"answer (such as {gone[0]}); check that all jobs are still visible. If they are "
            "really gone, set"
            f" trust_missing for one cycle"
        )
    return gone
