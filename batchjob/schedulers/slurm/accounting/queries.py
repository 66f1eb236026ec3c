"""The interface of queries to Slurm's accounting and controller, by commands or slurmrestd.

Facts: sacct(1), "-s" and "-S"; squeue(1); the queries of slurmdbd behind both sacct and slurmrestd.
With end states given, a job belongs to the window in which it ended, which slurmdbd reads as a
range of an index. With PENDING, RUNNING or SUSPENDED it reads its whole table of jobs. slurmctld
has those jobs in memory, and knows of held jobs that accounting receives late.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, QuarantinedRow, StepRecord, merge_by_key
from batchjob.schedulers.slurm.accounting.site_accounting import SiteAccounting
from batchjob.schedulers.states import JobState

END_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "TIMEOUT",
)  # fmt: skip

MAX_IDS_PER_QUERY = 50
"""Job ids per query: with 200, MariaDB reads the whole table instead of an index."""

EARLIEST_TIME = 1_000_000_000  # the earliest epoch seconds that Slurm accepts
QUEUE_INTERVAL_SECONDS = 60.0  # default of the option `queue-interval`
_BATCH = 2000  # jobs per transaction

_PEAK_MEMORY, _STEPS = map(JobRecord._fields.index, ("peak_memory_bytes", "steps"))
_CPU_AT_LEAST = JobRecord._fields.index("cpu_at_least")
_CPU_TIMES = slice(JobRecord._fields.index("user_cpu_seconds"), _PEAK_MEMORY)
_STEP_CPU_TIMES = slice(
    StepRecord._fields.index("user_cpu_seconds"), StepRecord._fields.index("cpu_seconds") + 1
)
_NO_CPU_TIME: Mapping[str, Any] = dict.fromkeys(StepRecord._fields[_STEP_CPU_TIMES])


class ParsedJob(NamedTuple):
    """A job with its steps, or a row that is not a job; each with its parse errors."""

    job: JobRecord | None
    quarantined: tuple[QuarantinedRow, ...] = ()


def split_batches(parsed: Iterator[ParsedJob]) -> Iterator[Batch]:
    yield collect_batch(islice(parsed, _BATCH))
    while following := list(islice(parsed, _BATCH)):
        yield collect_batch(following)


def collect_batch(parsed: Iterable[ParsedJob]) -> Batch:
    records: list[JobRecord] = []
    quarantine: list[QuarantinedRow] = []
    for job, rows in parsed:
        quarantine += rows
        if job is not None:
            records.append(job)
    return Batch(merge_by_key(_since_resizes(records)), tuple(quarantine), "", 0)


def is_partial(job: JobRecord, begin: int, *, steps: bool) -> bool:
    """Whether the answer of a window from `begin` on, queried with steps or not, may lack some.

    slurmdbd omits the steps that ended before the window, and the job's CPU time and memory are
    sums over the others (seen with 22.05 and 26.05). It may also lack the record of the start.
    """
    return job.start_time is not None and (
        job.start_time < begin or not (steps or job.steps) or has_uncertain_start(job)
    )


def without_uncertain(job: JobRecord) -> JobRecord:
    """The job without the totals over its steps, and without a start that is not certain.

    Nor with exit codes of steps that were derived: a step that is not listed may have had the code.
    """
    if has_uncertain_start(job):
        job = job._replace(start_time=None, elapsed_seconds=None)
    return _without_derived_codes(job)._replace(
        cpu_at_least=None, peak_memory_bytes=None, energy_joules=None, **_NO_CPU_TIME
    )


def _without_derived_codes(job: JobRecord) -> JobRecord:
    """The job without what its DerivedExitCode told of the exit codes of its steps."""
    steps = tuple(
        step
        if step.exit_code_or_128_more is None or step.step == "batch"
        else step._replace(exit_code=None)
        for step in job.steps
    )
    return job._replace(steps=steps)


def with_steps(job: JobRecord, steps: Sequence[StepRecord], site: SiteAccounting) -> JobRecord:
    """The job with its steps, and their totals, as Slurm has them: a sum, and the largest step.

    A running job has no CPU time, nor has a job without that of all its steps, nor has any where no
    plugin gathers it: Slurm writes zeros alone then (seen with 22.05). Steps that a failed node
    took with it are CANCELLED without an ExitCode, and their CPU time has not arrived. `extern` has
    no tasks, but the processes of prologs and of sessions by ssh.
    """
    if not site.is_gathered:
        job = job._replace(**_NO_CPU_TIME)
    if not site.is_gathered or not any(step.cpu_seconds or step.memory_bytes for step in steps):
        steps = [step._replace(**_NO_CPU_TIME) for step in steps]
    elif job.state is JobState.NODE_FAIL:
        steps = [_without_lost_cpu_time(step) for step in steps]
    values = list(job)  # takes a quarter of the time of _replace(), and runs for each job of a site
    values[_STEPS] = tuple(steps)
    values[_PEAK_MEMORY] = max((each.memory_bytes or 0 for each in steps), default=0) or None
    with_tasks = [step for step in steps if step.step != "extern"]
    if job.end_time is not None:
        states = (job.state, *(step.state for step in with_tasks))
        values[_CPU_AT_LEAST] = site.cpu_at_least(states)
    if job.end_time is not None and with_tasks:
        killed = [step for step in steps if step.step == "extern" and step.cpu_seconds is None]
        times = (step[_STEP_CPU_TIMES] for step in steps if step not in killed)
        values[_CPU_TIMES] = [
            None if None in column else sum(column) for column in zip(*times, strict=True)
        ]
    return JobRecord._make(values)


def _without_lost_cpu_time(step: StepRecord) -> StepRecord:
    has_exit = step.exit_signal is not None  # it ended before its node failed
    is_lost = step.state is JobState.CANCELLED and not has_exit
    return step._replace(**_NO_CPU_TIME) if is_lost else step


Following = dict[str, tuple[int, str]]
"""By id, since when a resized job holds what its next record has, and what that is."""


def held_before_resize(
    following: Following,
    jobid: str,
    submit: int | None,
    end: int | None,
    recorded: str,
    by_step: Mapping[str, str],
    nodes: int | None,
) -> str | None:
    """What a part of a job held that ended with a resize, None if no record tells.

    `recorded` is the allocation of the record. In 26.05, the record that ends with a resize has
    what the job holds from then on (seen). The step `extern` keeps all that its job held when it
    began, the batch step what is on its node. Both stay in the job's first record: what its other
    parts held is in the record before. The database keeps what slurmctld had, where none tells.
    """
    names = ("extern", "batch") if nodes == 1 else ("extern",)
    found = next((kept for name in names if (kept := by_step.get(name))), None)
    since, held = following.pop(jobid, (None, None))
    if found is None and since is not None and since == submit:
        found = held
    if end is not None and found is not None and found != recorded:
        following[jobid] = (end, recorded)
    return found


def _since_resizes(jobs: Sequence[JobRecord]) -> Sequence[JobRecord]:
    """The records of an answer; each of those after a resize begins with it.

    Accounting has a record for each allocation of a resized job, submitted at the resize. Up to
    22.05 at least, its start and run time are those of the whole job (seen with 22.05; with 26.05
    they are the record's). Without a record that ended with the resize, a start before the
    submission is that of a clock that was set back: see `has_uncertain_start`.
    """
    resizes = {(job.jobid, job.end_time) for job in jobs if job.state is JobState.RESIZED}
    if not resizes:
        return jobs
    return [
        _since_submission(job) if (job.jobid, job.submit_time) in resizes else job for job in jobs
    ]


def _since_submission(job: JobRecord) -> JobRecord:
    job = _without_derived_codes(job)  # slurmctld derives it from the steps of all parts
    if not has_uncertain_start(job):
        return job
    start, elapsed = job.start_time, job.elapsed_seconds
    if elapsed is not None and start is not None:
        elapsed = max(0, elapsed - (job.submit_time - start))
    return job._replace(start_time=job.submit_time, elapsed_seconds=elapsed)


def has_uncertain_start(job: JobRecord) -> bool:
    """Whether a job started before its submission: a clock was set back, or it is resized.

    An answer with all records of the job tells which; that of a window may lack the earlier ones.
    """
    return job.start_time is not None and job.start_time < job.submit_time
