"""Queries to Slurm's accounting and controller, whatever carries them.

Facts: sacct(1), "-s" and "-S"; squeue(1); the queries of slurmdbd behind both sacct and slurmrestd.
With end states given, a job belongs to the window in which it ended, which slurmdbd reads as a
range of an index. With PENDING, RUNNING or SUSPENDED it reads its whole table of jobs. slurmctld
has those jobs in memory, and knows of held jobs that accounting receives late.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, Quarantined, folded

ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "TIMEOUT",
)  # fmt: skip

IDS_AT_ONCE = 50
"""Job ids in one question: with 200, MariaDB reads the whole table instead of an index."""

EVER = 1_000_000_000  # the earliest epoch seconds that Slurm accepts
QUEUE_SECONDS = 60.0  # minimum time between two queries of the controller
_BATCH = 2000  # jobs per transaction


class Parsed(NamedTuple):
    """A job with its steps, or a row that is not a job; each with its parse errors."""

    job: JobRecord | None
    quarantined: tuple[Quarantined, ...] = ()


class SlurmQueries(Protocol):
    """One way to query Slurm's accounting and its controller; each call is one request."""

    def ended(self, begin: int, end: int, *, steps: bool) -> Iterator[Parsed]:
        """Incarnations that ended between two times (epoch seconds).

        Without steps, accounting reads a row per job, not one per step; totals over steps (CPU
        time, peak memory) may then be missing.
        """

    def by_id(self, jobids: Sequence[str]) -> Iterator[Parsed]:
        """All incarnations of these raw job ids, with steps; at most 50 ids."""

    def queue(self) -> Iterator[Parsed]:
        """The controller's jobs that have not ended.

        A completing job has an end time, which must not be written: accounting will have it.
        """


def batches(parsed: Iterator[Parsed]) -> Iterator[Batch]:
    """An answer in batches, at least one."""
    yield one_batch(islice(parsed, _BATCH))
    while following := list(islice(parsed, _BATCH)):
        yield one_batch(following)


def one_batch(parsed: Iterable[Parsed]) -> Batch:
    """All of an answer at once."""
    records: list[JobRecord] = []
    bad: list[Quarantined] = []
    for job, quarantined in parsed:
        bad += quarantined
        if job is not None:
            records.append(job)
    return Batch(folded(records), tuple(bad), "", 0)
