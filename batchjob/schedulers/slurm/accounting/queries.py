"""The interface of queries to Slurm's accounting and controller, by commands or slurmrestd.

Facts: sacct(1), "-s" and "-S"; squeue(1); the queries of slurmdbd behind both sacct and slurmrestd.
With end states given, a job belongs to the window in which it ended, which slurmdbd reads as a
range of an index. With PENDING, RUNNING or SUSPENDED it reads its whole table of jobs. slurmctld
has those jobs in memory, and knows of held jobs that accounting receives late.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, QuarantinedRow, merge_by_key

END_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "TIMEOUT",
)  # fmt: skip

MAX_IDS_PER_QUERY = 50
"""Job ids per query: with 200, MariaDB reads the whole table instead of an index."""

EARLIEST_TIME = 1_000_000_000  # the earliest epoch seconds that Slurm accepts
QUEUE_INTERVAL_SECONDS = 60.0  # minimum time between two queries of the controller
_BATCH = 2000  # jobs per transaction


class ParsedJob(NamedTuple):
    """A job with its steps, or a row that is not a job; each with its parse errors."""

    job: JobRecord | None
    quarantined: tuple[QuarantinedRow, ...] = ()


class SlurmQueries(Protocol):
    """One way to query Slurm's accounting and its controller; each call is one request."""

    def query_ended(self, begin: int, end: int, *, steps: bool) -> Iterator[ParsedJob]:
        """Incarnations that ended between two times (epoch seconds).

        Without steps, accounting reads a row per job, not one per step; totals over steps (CPU
        time, peak memory) may then be missing.
        """

    def query_by_id(self, jobids: Sequence[str]) -> Iterator[ParsedJob]:
        """All incarnations of these raw job ids, with steps; at most 50 ids."""

    def query_queue(self) -> Iterator[ParsedJob]:
        """The controller's jobs that have not ended.

        A completing job has an end time, which must not be written: accounting will have it.
        """


def split_batches(parsed: Iterator[ParsedJob]) -> Iterator[Batch]:
    """Split an answer into batches, at least one."""
    yield collect_batch(islice(parsed, _BATCH))
    while following := list(islice(parsed, _BATCH)):
        yield collect_batch(following)


def collect_batch(parsed: Iterable[ParsedJob]) -> Batch:
    """Collect an answer into a single batch."""
    records: list[JobRecord] = []
    quarantine: list[QuarantinedRow] = []
    for job, rows in parsed:
        quarantine += rows
        if job is not None:
            records.append(job)
    return Batch(merge_by_key(records), tuple(quarantine), "", 0)
