"""The records that sources return and the store writes: immutable, typed, in base units.

Times are UTC epoch seconds, durations seconds, sizes bytes, energy joules. Start, end and eligible
time have milliseconds if their source does. None (and "" for text) means that this source does not
report the value: the store keeps that of an earlier record of the same key. So a record may be
partial; only its key and its state are always present.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from batchjob.schedulers.states import JobState


class NodeShare(NamedTuple):
    """A job's share of one node; None for what the scheduler does not state per node."""

    node: str
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    until_time: float | None = None  # when it was given back; None: it stayed until the job's end


class Reallocation(NamedTuple):
    """What a running job held until a moment beyond what it held from then on; negative: less."""

    until_time: float
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


class StepRecord(NamedTuple):
    """A step of a Slurm job. Its key is the job's key and `step`."""

    step: str  # "batch", "extern", "interactive", "0"; in a het job "0+1"
    state: JobState
    state_word: str
    name: str = ""
    start_time: int | None = None
    end_time: int | None = None
    elapsed_seconds: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_code_or_128_more: int | None = None  # as Slurm's sacct prints it up to 25.05
    nodes: int | None = None
    node_list: str = ""
    tasks: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    user_cpu_seconds: float | None = None
    system_cpu_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_task_memory_bytes: int | None = None  # of its largest task
    memory_bytes: int | None = None  # sum of its tasks' peaks
    read_bytes: int | None = None
    written_bytes: int | None = None
    energy_joules: int | None = None
    submit_line: str = ""


class JobKey(NamedTuple):
    """One incarnation of a job: ids are reused, and one submission can run several times."""

    cluster: str
    jobid: str
    submit_time: int
    run: int


class JobRecord(NamedTuple):
    """An incarnation of a job, as its scheduler reports it.

    `jobid` is the text of the exporter's label: Slurm's raw id, PBS' full id, LSF's `123[4]`, a
    local run's UUID. `run` counts the runs of one submission from 1 if the scheduler keeps the
    submit time across reruns (PBS, LSF); Slurm gives each run its own, so `run` is always 1.
    """

    cluster: str
    jobid: str
    submit_time: int
    state: JobState
    state_word: str  # as the scheduler calls it
    source: str  # the name of the source, such as "sacct"
    run: int = 1
    record_id: str = ""  # the scheduler's own id of this record (Slurm's DBIndex)
    sluid: str = ""
    # Owner and place.
    user: str = ""
    uid: int | None = None
    group: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    name: str = ""
    reservation: str = ""
    priority: int | None = None
    # Times.
    expected_start_time: float | None = None  # of a pending job, according to the scheduler
    eligible_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    elapsed_seconds: float | None = None
    suspended_seconds: int | None = None
    time_limit_seconds: int | None = None  # None if the limit is unknown, or if there is none
    # How it ended.
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_code_or_128_more: int | None = None  # as Slurm's sacct prints it up to 25.05
    derived_exit_code: int | None = None
    derived_exit_signal: int | None = None
    reason: str = ""
    cancelled_by: str = ""  # a user name, or a uid that has none
    restarts: int | None = None
    # Requested and allocated resources.
    requested_cpus: int | None = None
    requested_memory_bytes: int | None = None
    requested_gpus: int | None = None
    requested_nodes: int | None = None
    requested_resources: str = ""  # as the scheduler writes it
    allocated_cpus: float | None = None
    allocated_memory_bytes: int | None = None
    allocated_gpus: int | None = None
    allocated_nodes: int | None = None
    # What a job whose allocation changed held beyond the amounts above times its run time.
    resized_cpu_seconds: float | None = None  # negative if it held less
    resized_gpu_seconds: float | None = None
    resized_memory_byte_seconds: float | None = None
    allocated_resources: str = ""
    node_list: str = ""  # as the scheduler writes it
    nodes: tuple[NodeShare, ...] = ()  # the same nodes, each listed once
    # Related jobs.
    array_jobid: str = ""
    array_index: int | None = None
    het_jobid: str = ""
    het_offset: int | None = None
    dependencies: str = ""
    # How it was started.
    submit_line: str = ""
    work_dir: str = ""
    stdout_path: str = ""
    # Known only for tracked work.
    tool: str = ""
    parameters: str = ""  # a JSON object
    error: str = ""  # error message
    result_type: str = ""  # type of the return value; "" if nothing was returned
    # As measured by the scheduler's accounting.
    # Of the CPU times below; 1: they may lack processes in the background, 2: killed ones.
    cpu_at_least: int | None = None
    user_cpu_seconds: float | None = None
    system_cpu_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    energy_joules: int | None = None
    steps: tuple[StepRecord, ...] = ()
    reallocations: tuple[Reallocation, ...] = ()  # nodes given back stay in `nodes`

    @property
    def key(self) -> JobKey:
        return JobKey(self.cluster, self.jobid, self.submit_time, self.run)


class QuarantinedRow(NamedTuple):
    """A row of a source that could not be used."""

    source: str
    reason: str
    raw: str  # the original text, truncated to RAW_LIMIT characters
    rule: str = "unreadable"  # the rule that it breaks
    jobid: str = ""  # of a row whose text changes with each reading, so that it is stored once


RAW_LIMIT = 10_000


class Role(StrEnum):
    MEMBER = "member"
    COORDINATOR = "coordinator"


class Association(NamedTuple):
    """Membership of a user in an account. A coordinator may see the account's jobs."""

    cluster: str  # "" if it applies to every cluster
    account: str
    user: str
    role: Role
    default: bool = False  # used for this user's jobs that name no account


class Administrator(NamedTuple):
    """A user who may see, or change, everything in the scheduler."""

    user: str
    level: str  # "operator" or "administrator"


class Account(NamedTuple):
    """An account and its place in the tree of accounts."""

    cluster: str
    account: str
    parent: str = ""
    limits: str = ""  # as the scheduler writes them, such as "GrpJobs=10 MaxWall=2-00:00:00"


class Associations(NamedTuple):
    associations: tuple[Association, ...]
    administrators: tuple[Administrator, ...]
    accounts: tuple[Account, ...]
    quarantined: tuple[QuarantinedRow, ...] = ()


def merge_by_key(records: Iterable[JobRecord]) -> tuple[JobRecord, ...]:
    """Merge records of the same key: values of a later record replace those of an earlier one."""
    latest: dict[JobKey, JobRecord] = {}
    for record in records:
        key = record.key
        earlier = latest.get(key)
        latest[key] = record if earlier is None else merge_records(earlier, record)
    return tuple(latest.values())


def merge_records(earlier: JobRecord, later: JobRecord) -> JobRecord:
    """`later`, with missing values taken from `earlier`; an end is never removed."""
    if is_outdated(later, earlier.end_time):
        earlier, later = later, earlier
    later = with_known_changes(later, earlier.end_time, earlier.resized_cpu_seconds)
    is_withdrawn = withdraws_allocation(later.allocated_cpus, later.resized_cpu_seconds)
    dropped = dropped_values(earlier.state, later.state, is_withdrawn)
    later = later._replace(name=unabridged_name(earlier.name, later.name))
    if later.reallocations and "nodes" not in dropped:
        known = {each.until_time: each for each in (*earlier.reallocations, *later.reallocations)}
        later = with_returned_nodes(earlier.nodes, later)
        later = later._replace(reallocations=tuple(known.values()))
    return JobRecord._make(
        (JobRecord._field_defaults[name] if name in dropped else old)
        if new is None or new in ("", ())
        else new
        for name, old, new in zip(JobRecord._fields, earlier, later, strict=True)
    )


def with_returned_nodes(earlier: Iterable[NodeShare], job: JobRecord) -> JobRecord:
    """The record of a reallocated job, with the nodes that it had earlier and gave back.

    A record that says how many nodes the job has names all of them: it never ran on others.
    """
    names = {share.node for share in job.nodes}
    if not names or not job.reallocations or job.allocated_nodes == len(names):
        return job
    until = job.reallocations[-1].until_time
    returned = [
        share if share.until_time is not None else share._replace(until_time=until)
        for share in earlier
        if share.node not in names
    ]
    return job._replace(nodes=(*job.nodes, *returned))


_MIN_ABRIDGED = 252  # bytes; nothing is left of a character that does not fit into 255


def unabridged_name(earlier: str, later: str) -> str:
    """The later name, or the earlier one if the later is what Slurm's accounting makes of it.

    slurmdbd has a backquote for each double quote, and the first 255 bytes (seen with 22.05).
    """
    accounted = earlier.replace('"', "`")
    is_cut = accounted.startswith(later) and len(later.encode()) >= _MIN_ABRIDGED
    return earlier if is_cut or accounted == later else later


_OF_A_WAIT = frozenset(("reason", "expected_start_time"))
_ALLOCATION = frozenset((
    "allocated_cpus", "allocated_memory_bytes", "allocated_gpus", "allocated_nodes",
    "resized_cpu_seconds", "resized_gpu_seconds", "resized_memory_byte_seconds",
    "allocated_resources", "node_list", "nodes", "reallocations",
))  # fmt: skip
_OF_A_RUN = _ALLOCATION | frozenset((
    "start_time", "elapsed_seconds", "suspended_seconds", "exit_code", "exit_signal",
))  # fmt: skip


def withdraws_allocation(cpus: float | None, resized_cpu_seconds: float | None) -> bool:
    """Whether a record with these values says that what its resized job held is not known."""
    return cpus is None and resized_cpu_seconds == 0


def with_known_changes(
    record: JobRecord, end_time: float | None, resized_cpu_seconds: float | None
) -> JobRecord:
    """The record without an allocation that lacks what is known of an ended job's changes.

    Read again without the records before it, a job's end says what it began with, or nothing.
    """
    is_whole = record.allocated_cpus is not None and record.resized_cpu_seconds is not None
    if end_time is None or resized_cpu_seconds is None or is_whole:
        return record
    return record._replace(**{name: JobRecord._field_defaults[name] for name in _ALLOCATION})


def dropped_values(earlier: str, later: str, is_withdrawn: bool) -> frozenset[str]:
    """The fields of a record in state `earlier` that one in state `later` does not take over.

    A job that waits (again) has no start and holds nothing; one that waits no longer does so for no
    reason. A later record may withdraw what earlier ones say of the allocation.
    """
    waited, waits = earlier == JobState.PENDING, later == JobState.PENDING
    if waited == waits:
        return _ALLOCATION if is_withdrawn else frozenset()
    return _OF_A_RUN if waits else _OF_A_WAIT


_GROWING_VALUES: Mapping[str, Any] = dict.fromkeys(
    ("elapsed_seconds", "user_cpu_seconds", "system_cpu_seconds", "cpu_seconds",
     "peak_memory_bytes", "energy_joules")
)  # fmt: skip


def without_growing_values(record: JobRecord) -> JobRecord:
    """The record without the values that grow while a job waits or runs."""
    if not record.state.is_live or record.end_time is not None:
        return record
    kept = record.elapsed_seconds if record.state is JobState.SUSPENDED else None
    return record._replace(**_GROWING_VALUES)._replace(elapsed_seconds=kept)


def is_outdated(record: JobRecord, end_time: float | None) -> bool:
    """Whether the record of a live job is older than the known end of this job.

    Log lines arrive out of order; sources have different delays. A later run has a key of its own.
    """
    return end_time is not None and record.end_time is None and record.state.is_live


def run_time(
    start: float | None,
    end: float | None,
    counted: float | None = None,
    suspended: float | None = None,
) -> tuple[float | None, int | None]:
    """Seconds in which an ended job ran, and in which it was suspended; None if it never started.

    `counted` is the scheduler's own counter of run time, which stops while a job is suspended. It
    counts if the time from start to end has room for it (rounded times may be a second apart), also
    where it is shorter: a busy node starts a job after its recorded start. Otherwise the run time
    is that from start to end without the suspensions. `suspended` is what the records say of
    suspensions; if that is nothing, or impossible, a difference to `counted` is taken for one.
    """
    if start is None or end is None:
        return None, None
    span = max(0.0, end - start)
    suspended = None if suspended is not None and suspended > span + 1 else suspended
    if counted is None or not 0 <= counted <= span + 1:
        known = min(span, suspended or 0)
        return _whole(span - known), round(known)
    counted = min(counted, span)
    return _whole(counted), round(min(span, span - counted if suspended is None else suspended))


def _whole(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds
