"""Reports: plain values in SI base units, from which JSON and all other formats are made.

`ReportInput`, at the end, is what reports are built from.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchjob.judgements import AT_LEAST
from batchjob.runtime import formatting
from batchjob.runtime.formatting import energy, format_count, format_duration, size
from batchjob.schedulers.submission import NextRequest
from batchjob_stats_db.measure.job_usage import CAVEATS, NO_SAMPLES, RUNNING, THREADS_SAMPLED
from batchjob_stats_db.measure.node_usage import UNIDENTIFIED
from batchjob_stats_db.queries.efficiency import ACCOUNTING


@dataclass(frozen=True)
class JobSummary:
    """The job as its scheduler recorded it; times in milliseconds since the epoch."""

    cluster: str
    jobid: str
    job_id: int  # id of its row
    user: str
    group: str
    account: str
    partition: str
    name: str
    state: str
    state_word: str
    array_jobid: str  # "" if it is not a task of an array
    array_index: int | None  # None: all tasks that have not started
    submit_time: int
    start_time: int | None
    start_time_rfc3339: str | None
    end_time: int | None
    end_time_rfc3339: str | None
    elapsed_seconds: float | None
    time_limit_seconds: int | None
    exit_code: int | None
    exit_signal: int | None
    exit_code_or_128_more: int | None  # where exit_code is not known: it is this, or 128 more
    nodes: int | None
    cpus: float | None
    resized_cpu_seconds: float | None  # if its allocation changed: `cpus` are those at last
    memory_bytes: int | None
    gpus: int | None
    requested_nodes: int | None
    requested_cpus: int | None
    requested_memory_bytes: int | None
    requested_gpus: int | None
    submit_line: str
    work_dir: str
    allocated_resources: str  # as named by the scheduler
    cancelled_by: str
    tool: str  # of tracked work, like the following fields
    parameters: str  # a JSON object
    error: str
    result_type: str  # type of the returned value
    record_id: str  # id in another system


@dataclass(frozen=True)
class JobUse:
    """Usage of the whole job: measured, else from the scheduler's accounting."""

    cpu_seconds: float | None
    cpu_basis: str | None  # measured, accounting or at least
    user_cpu_seconds: float | None
    system_cpu_seconds: float | None
    peak_memory_bytes: int | None
    read_bytes: int | None  # by its processes, network file systems included
    written_bytes: int | None
    device_read_bytes: int | None  # part of it that reached block devices
    device_written_bytes: int | None
    network_received_bytes: int | None
    network_sent_bytes: int | None

    def cpu_label(self) -> str:
        """What the CPU time is called."""
        return f"CPU time, {AT_LEAST}" if self.cpu_basis == AT_LEAST else "CPU time"

    def transfers(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Bytes of files (those of short processes may lack), of disks and of the network."""
        for label, directions in (
            (f"Storage, {AT_LEAST}", {"read": self.read_bytes, "written": self.written_bytes}),
            ("Disks", {"read": self.device_read_bytes, "written": self.device_written_bytes}),
            ("Network", {"received": self.network_received_bytes, "sent": self.network_sent_bytes}),
        ):
            known = {name: number for name, number in directions.items() if number is not None}
            if known:
                yield label, known


@dataclass(frozen=True)
class Basis:
    """How complete the figures are."""

    source: str  # prometheus, samples; accounting: only the scheduler's own data; "": none
    samples: int
    nodes: int
    coverage: float | None  # fraction of the job's node time that they cover
    until_time: int | None  # epoch milliseconds; end of the measured time
    final: bool  # the job has ended, and its figures will not change
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Efficiency:
    """The used share of an allocated resource."""

    what: str  # cpu, memory, gpu, time
    ratio: float | None
    used: float | None
    available: float | None
    unit: str  # of `used` and `available`: seconds, bytes, GPUs
    formula: str
    source: str
    missing: str  # why there is no ratio; "" if there is one
    until_time: int | None = None  # epoch milliseconds; the job ran on after this measurement
    reclaimable: bool = False  # as far as is known, what fills it is page cache


@dataclass(frozen=True)
class GpuUse:
    """One GPU, or an instance of one; its UUID begins with `unidentified` if it is not known."""

    node: str
    gpu: str
    uuid: str
    gpu_instance: str
    utilization_ratio: float | None
    memory_peak_bytes: int | None
    memory_total_bytes: int | None
    observed_seconds: float | None = None  # that the utilisation covers
    shared_seconds: float | None = None  # in which other jobs held the GPU as well
    mps_seconds: float | None = None  # in which processes ran under MPS
    sm_active_ratio: float | None = None  # of its multiprocessors, and so on; Hopper and later
    sm_active_peak_ratio: float | None = None  # in one second
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None

    @property
    def unknown_reason(self) -> str:
        if self.mps_seconds and self.mps_seconds > (self.shared_seconds or 0):
            return "processes ran under MPS, where the driver does not tell who used the GPU"
        if self.shared_seconds:
            return "other jobs held the GPU as well, and the driver does not tell who used it"
        if self.uuid.startswith(UNIDENTIFIED):
            return "it is not known which GPU of the node it was"
        return "not measured"


@dataclass(frozen=True)
class NodeUse:
    """What the job used on one node."""

    node: str
    cpu_seconds: float | None
    memory_peak_bytes: int | None


@dataclass(frozen=True)
class JobEnergy:
    """Energy of the nodes by component and kind, and at the site's meter."""

    components: Mapping[str, float]  # joules of host active, host idle, gpu active and gpu idle
    total_joules: float | None
    site_joules: float | None  # multiplied by PUE; None if no PUE is set
    pue: float | None
    source: str  # accounting: of the whole nodes, which other jobs may have used too
    missing: str = ""  # why the job's energy was not measured; "" if it was


@dataclass(frozen=True)
class Emission:
    """Emissions with the factors of one provider; those of several must not be added."""

    provider: str
    grams: float
    site_grams: float | None  # multiplied by PUE


@dataclass(frozen=True)
class SimilarComparison:
    """A figure of this job among those of the user's similar jobs."""

    what: str
    unit: str
    this: float | None
    jobs: int  # number of similar jobs for which it is known
    lower_quartile: float
    median: float
    upper_quartile: float
    below: float | None  # part of these jobs with less than this one


@dataclass(frozen=True)
class Similar:
    """The user's latest similar jobs that completed before this one."""

    alike: str  # what they have in common: the name or the request
    jobs: int
    comparisons: tuple[SimilarComparison, ...]
    missing: str  # why there is nothing to compare; "" if there is something


@dataclass(frozen=True)
class Advice:
    """The advice of a rule, with its figures and a next step."""

    rule: str
    severity: str  # serious, warning, info
    title: str
    reason: str
    step: str
    numbers: Mapping[str, int | float | str]


@dataclass(frozen=True)
class Resubmission:
    """The submit line with the request that the advice of the report asks for, and what it saves.

    An amount is negative if the advice is to request more.
    """

    line: str  # "": the line holds nothing of the request
    source: str  # of the job's record, which tells its scheduler
    request: NextRequest
    basis: str  # how it was reckoned
    runs: int  # number of earlier runs
    saved_cpus: int  # like the following ones, over all nodes
    saved_gpus: int
    saved_memory_bytes: int
    saved_seconds: int  # of the time limit
    saved_joules: float | None  # what the CPUs and GPUs used while idle, if it was measured

    def savings(self, elapsed: float | None) -> str:
        """`3 GPUs for 5 h 30 min, 1.5 kWh`; "" if nothing is saved."""
        counts = ((self.saved_gpus, "GPU"), (self.saved_cpus, "CPU"))
        words = [format_count(number, what) for number, what in counts if number > 0]
        words += [size(self.saved_memory_bytes)] if self.saved_memory_bytes > 0 else []
        hours = f" for {format_duration(elapsed)}" if elapsed else ""
        words = [f"{each}{hours}" for each in words]
        if self.saved_joules:
            words.append(energy(self.saved_joules))
        if self.saved_seconds > 0:
            words.append(f"{format_duration(self.saved_seconds)} of the time limit")
        return ", ".join(words)


@dataclass(frozen=True)
class SkippedRule:
    """A rule that gave no advice, and why."""

    rule: str
    reason: str


@dataclass(frozen=True)
class LogLink:
    """Where the lines that the job's nodes wrote during it can be read."""

    nodes: str  # one, or the first and the last of several
    url: str


@dataclass(frozen=True)
class Report:
    """How well a job used its allocation, with advice."""

    headline: str  # why it waits or how it ended, in one or two sentences; "": nothing to explain
    job: JobSummary
    use: JobUse
    interim: bool  # the job is still running, so all this may change
    basis: Basis
    efficiency: tuple[Efficiency, ...]
    nodes: tuple[NodeUse, ...]
    gpus: tuple[GpuUse, ...]
    energy: JobEnergy
    emissions: tuple[Emission, ...]
    similar: Similar
    advice: tuple[Advice, ...]
    silent: tuple[SkippedRule, ...]
    resubmission: Resubmission | None = None
    logs: tuple[LogLink, ...] = ()

    def caveats(self) -> tuple[str, ...]:
        """The caveats in words: what is missing, and what that means for the numbers.

        Omits what reports show elsewhere, that nothing was measured, or that the job still runs;
        and that threads are the most seen, which no figure of a report depends on.
        """
        elsewhere = {NO_SAMPLES, THREADS_SAMPLED, *([RUNNING] if self.interim else [])}
        told = [CAVEATS.get(word, word) for word in self.basis.caveats if word not in elsewhere]
        if self.use.cpu_basis == ACCOUNTING:  # the total is known
            told = [each.replace("CPU time, IO and energy", "IO and energy") for each in told]
        return tuple(told)


Row = Mapping[Any, Any]


SIMILAR_JOB_COLUMNS = (
    "state", "start_time", "end_time", "elapsed_seconds", "suspended_seconds", "as_of_time",
    "allocated_nodes",
    "usage_samples", "usage_until_time", "usage_coverage", "usage_caveats", "usage_final",
    "usage_gpu_utilization_ratio", "usage_memory_peak_node_bytes", "cpu_efficiency",
    "memory_used_bytes", "memory_basis", "energy_used_joules", "allocated_cpus", "gpus_held",
)  # fmt: skip
"""Columns to query for similar jobs."""


NAMED_RUN_COLUMNS = (
    "id", "cluster", "jobid", "submit_time", "run", "state", "start_time", "end_time",
    "elapsed_seconds", "suspended_seconds", "as_of_time", "allocated_nodes",
    "allocated_memory_bytes", "time_limit_seconds", "memory_used_bytes", "energy_used_joules",
)  # fmt: skip
"""Columns to query for other runs of a name."""


class ReportInput(NamedTuple):
    """Rows of the database (queries/jobs.py), and what only the measurements contain."""

    job: Row  # with its usage as usage_...
    now: int
    gpus: Sequence[Row] = ()
    emissions: Sequence[Row] = ()
    nodes: Sequence[NodeUse] = ()  # empty: unknown per node
    gpu_memory: Mapping[str, int] = {}  # installed memory, by UUID and instance
    cpu_peaks: Mapping[str, float] = {}  # by node: the most CPUs in use between two samples
    similar: Sequence[Row] = ()  # with SIMILAR_JOB_COLUMNS, latest first
    alike: str = ""  # what they have in common
    short_jobs: int | None = None  # of this user, at most a minute long, in the day before
    steps: Sequence[Row] = ()
    shares: Sequence[Row] = ()  # its allocation on each node
    usual_wait: Row | None = None  # for a waiting job: of others in its partition
    runs_of_name: Sequence[Row] = ()  # its latest other runs in any state, with NAMED_RUN_COLUMNS
    script: str = ""  # its batch script, if the site keeps it and it is the reader's own
    largest_node_bytes: float | None = None  # memory of the largest node of its cluster
    longest_limit_seconds: float | None = None  # with which a job of its partition has started


def format_emissions(grams: float) -> str:
    """`120 g CO2e`, or kg."""
    return f"{formatting.mass(grams)} CO2e"


FORMATTERS: Mapping[str, Callable[[float], str]] = {
    "bytes": formatting.size,
    "seconds": formatting.format_clock,
    "ratio": formatting.share,
    "joules": formatting.energy,
    "grams": format_emissions,
    "count": formatting.digits,
}
