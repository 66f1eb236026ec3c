"""Which metric shows which number of a job: the table, and families made from it."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from collectors.jobs.identity import INFO_LABELS
from collectors.jobs.reading import CgroupReading, DeviceIO, Interface, ProcessReading
from collectors.metric import NO_LABELS, Labels, Metric, join, labels

Sample = tuple[Labels, float]


class JobLabels(dict[Labels, Labels]):
    """The job's labels, joined once with those of a row and kept: `job_labels[extra]`."""

    def __init__(self, own: Labels) -> None:
        super().__init__()
        self._own = own

    def __missing__(self, extra: Labels) -> Labels:
        joined = self[extra] = join(self._own, extra)
        return joined


class JobReading(NamedTuple):
    """One job at the moment of a scrape."""

    manager: str
    labels: Labels  # manager, jobid and user
    info: Labels  # what else is known of it
    cgroup: CgroupReading
    processes: ProcessReading | None  # None: not looked at yet, or too long ago
    ended_at: float | None
    started_at: float | None


class Row(NamedTuple):
    """One sample per job."""

    value: Callable[[JobReading], float | None]  # None: not read, so no sample
    labels: Labels = NO_LABELS

    def samples(self, value: float | None, of_job: JobLabels) -> tuple[Sample, ...]:
        """What shows this value."""
        return () if value is None else ((of_job[self.labels], value),)


class Rows(NamedTuple):
    """One sample per job and device, interface or program."""

    label: str
    value: Callable[[JobReading], Mapping[str, float] | None]

    def samples(self, value: Mapping[str, float] | None, of_job: JobLabels) -> tuple[Sample, ...]:
        """What shows these values."""
        items = (value or {}).items()
        return tuple((of_job[labels(**{self.label: key})], number) for key, number in items)


class InfoRow(NamedTuple):
    """A sample of 1 with what is known of the job."""

    value: Callable[[JobReading], Labels]

    def samples(self, value: Labels, of_job: JobLabels) -> tuple[Sample, ...]:
        """What shows this text."""
        return ((of_job[value], 1),)


class JobMetric(NamedTuple):
    """A family, the group that switches it, and whether it outlives its job.

    A finished job keeps its counters and peaks for a while; what it no longer has, such as
    memory in use, ends with it.
    """

    group: str
    lasting: bool
    metric: Metric
    rows: tuple[Row | Rows | InfoRow, ...]


GROUPS: Mapping[str, str] = {
    "cpu": "CPU time and CPUs allocated",
    "throttling": "periods and time in which a CPU quota held the job back",
    "memory": "memory in use, peak and limit, by anonymous, file and shared, OOM kills",
    "memory-detail": "kernel, mapped and inactive memory, working set",
    "faults": "page faults",
    "pressure": "time lost waiting for CPU, memory and IO (PSI)",
    "io": "block IO per device, where the io controller is enabled",
    "process-io": "IO calls and bytes summed over processes: the only view of network file systems",
    "processes": "processes, threads and their limit",
    "open-files": "open files",
    "network": "traffic of jobs with a network namespace of their own",
}
DEFAULT_GROUPS = (
    "cpu", "memory", "faults", "pressure", "io", "process-io", "processes", "network",
)  # fmt: skip

JOB_LABELS = ("manager", "jobid", "user")


def _gauge(name: str, help: str, *extra: str) -> Metric:
    return Metric(f"batchjob_job_{name}", "gauge", help, (*JOB_LABELS, *extra))


def _counter(name: str, help: str, *extra: str) -> Metric:
    return Metric(f"batchjob_job_{name}_total", "counter", help, (*JOB_LABELS, *extra))


def _cpu(field: str) -> Callable[[JobReading], float | None]:
    def value(reading: JobReading) -> float | None:
        """A tree without cpuacct leaves only the sum over processes."""
        exact: float | None = getattr(reading.cgroup, field)
        if exact is None and reading.processes is not None:
            return getattr(reading.processes, field)  # type: ignore[no-any-return]
        return exact

    return value


def cpu_seconds(reading: JobReading) -> tuple[float | None, float | None]:
    """User and system time, as the metrics show them."""
    return _USER(reading), _SYSTEM(reading)


_USER, _SYSTEM = _cpu("cpu_user_seconds"), _cpu("cpu_system_seconds")


def _threads(reading: JobReading) -> float | None:
    if reading.cgroup.threads is None and reading.processes is not None:
        return reading.processes.threads
    return reading.cgroup.threads


def _working_set(reading: JobReading) -> float | None:
    current, inactive = reading.cgroup.memory_current, reading.cgroup.memory_inactive_file
    if current is None or inactive is None:
        return None
    return max(0, current - inactive)  # read at two moments


def _minor_faults(reading: JobReading) -> float | None:
    every, major = reading.cgroup.page_faults, reading.cgroup.page_faults_major
    return None if every is None or major is None else every - major


def _process(
    value: Callable[[ProcessReading], float | None],
) -> Callable[[JobReading], float | None]:
    return lambda r: None if r.processes is None else value(r.processes)


def _device(value: Callable[[DeviceIO], float]) -> tuple[Rows]:
    def values(reading: JobReading) -> Mapping[str, float] | None:
        devices = reading.cgroup.io
        return None if devices is None else {name: value(io) for name, io in devices.items()}

    return (Rows("device", values),)


def _interface(value: Callable[[Interface], float]) -> tuple[Rows]:
    def values(reading: JobReading) -> Mapping[str, float] | None:
        network = None if reading.processes is None else reading.processes.network
        return None if network is None else {name: value(each) for name, each in network.items()}

    return (Rows("device", values),)


_FEW = "; approximate: what an ended process used between two looks may be missing"

JOB_METRICS: tuple[JobMetric, ...] = (
    JobMetric(
        "", True,
        Metric(
            "batchjob_job_info", "gauge", "What is known of the job; always 1.",
            (*JOB_LABELS, *INFO_LABELS),
        ),
        (InfoRow(lambda r: r.info),),
    ),
    JobMetric(
        "", True, _gauge("start_time_seconds", "Start of the job's first process here, epoch."),
        (Row(lambda r: r.started_at),),
    ),
    JobMetric(
        "", True,
        _gauge("end_time_seconds", "When the job's last process here was noticed to have ended."),
        (Row(lambda r: r.ended_at),),
    ),
    JobMetric(
        "cpu", True,
        _counter("cpu_seconds", "CPU time of all processes the job has had.", "mode"),
        (
            Row(_USER, labels(mode="user")),
            Row(_SYSTEM, labels(mode="system")),
        ),
    ),
    JobMetric(
        "cpu", False,
        _gauge("cpus", "CPUs allocated to the job: its CPU set, or its quota where it has none."),
        (Row(lambda r: r.cgroup.cpus),),
    ),
    JobMetric(
        "throttling", True,
        _counter("cpu_throttled_seconds", "Time in which the CPU quota kept tasks from running."),
        (Row(lambda r: r.cgroup.cpu_throttled_seconds),),
    ),
    JobMetric(
        "throttling", True,
        _counter("cpu_throttled_periods", "Quota periods in which the job was held back."),
        (Row(lambda r: r.cgroup.cpu_throttled_periods),),
    ),
    JobMetric(
        "throttling", True,
        _counter("cpu_periods", "Quota periods in which the job had something to run."),
        (Row(lambda r: r.cgroup.cpu_periods),),
    ),
    JobMetric(
        "memory", False,
        _gauge("memory_current_bytes", "Memory charged to the job, page cache included."),
        (Row(lambda r: r.cgroup.memory_current),),
    ),
    JobMetric(
        "memory", True,
        _gauge("memory_peak_bytes", "Most memory ever charged to the job, page cache included."),
        (Row(lambda r: r.cgroup.memory_peak),),
    ),
    JobMetric(
        "memory", False,
        _gauge("memory_limit_bytes", "Nearest memory limit that holds for the job."),
        (Row(lambda r: r.cgroup.memory_limit),),
    ),
    JobMetric(
        "memory", False,
        _gauge("memory_anon_bytes", "Anonymous memory: heap and stack, not shared memory."),
        (Row(lambda r: r.cgroup.memory_anon),),
    ),
    JobMetric(
        "memory", False, _gauge("memory_file_bytes", "Page cache, shared memory included."),
        (Row(lambda r: r.cgroup.memory_file),),
    ),
    JobMetric(
        "memory", False, _gauge("memory_shmem_bytes", "Shared memory and tmpfs."),
        (Row(lambda r: r.cgroup.memory_shmem),),
    ),
    JobMetric(
        "memory-detail", False, _gauge("memory_kernel_bytes", "Kernel memory charged to the job."),
        (Row(lambda r: r.cgroup.memory_kernel),),
    ),
    JobMetric(
        "memory-detail", False, _gauge("memory_mapped_bytes", "Page cache mapped by processes."),
        (Row(lambda r: r.cgroup.memory_mapped),),
    ),
    JobMetric(
        "memory-detail", False,
        _gauge("memory_inactive_file_bytes", "Page cache that is reclaimed first."),
        (Row(lambda r: r.cgroup.memory_inactive_file),),
    ),
    JobMetric(
        "memory-detail", False,
        _gauge("memory_working_set_bytes", "Memory charged less inactive page cache."),
        (Row(_working_set),),
    ),
    JobMetric(
        "memory", False, _gauge("memory_swap_bytes", "Swap in use."),
        (Row(lambda r: r.cgroup.memory_swap),),
    ),
    JobMetric(
        "faults", True,
        _counter("page_faults", "Page faults; major ones had to wait for storage.", "kind"),
        (
            Row(_minor_faults, labels(kind="minor")),
            Row(lambda r: r.cgroup.page_faults_major, labels(kind="major")),
        ),
    ),
    JobMetric(
        "memory", True,
        _counter("memory_limit_hits", "Times the job reached its memory limit."),
        (Row(lambda r: r.cgroup.memory_limit_hits),),
    ),
    JobMetric(
        "memory", True, _counter("oom_kills", "Processes of the job ended by the OOM killer."),
        (Row(lambda r: r.cgroup.oom_kills),),
    ),
    JobMetric(
        "pressure", True,
        _counter(
            "pressure_waiting_seconds", "Time in which some task waited for a resource.", "resource"
        ),
        (
            Row(lambda r: r.cgroup.cpu_waiting_seconds, labels(resource="cpu")),
            Row(lambda r: r.cgroup.memory_waiting_seconds, labels(resource="memory")),
            Row(lambda r: r.cgroup.io_waiting_seconds, labels(resource="io")),
        ),
    ),
    JobMetric(
        "pressure", True,
        _counter(
            "pressure_stalled_seconds", "Time in which all tasks waited for a resource.", "resource"
        ),
        (
            Row(lambda r: r.cgroup.cpu_stalled_seconds, labels(resource="cpu")),
            Row(lambda r: r.cgroup.memory_stalled_seconds, labels(resource="memory")),
            Row(lambda r: r.cgroup.io_stalled_seconds, labels(resource="io")),
        ),
    ),
    JobMetric(
        "io", True, _counter("io_read_bytes", "Bytes read from block devices.", "device"),
        _device(lambda io: io.read_bytes),
    ),
    JobMetric(
        "io", True, _counter("io_written_bytes", "Bytes written to block devices.", "device"),
        _device(lambda io: io.written_bytes),
    ),
    JobMetric(
        "io", True, _counter("io_reads", "Read operations on block devices.", "device"),
        _device(lambda io: io.reads),
    ),
    JobMetric(
        "io", True, _counter("io_writes", "Write operations on block devices.", "device"),
        _device(lambda io: io.writes),
    ),
    JobMetric(
        "process-io", True,
        _counter("process_io_read_bytes", f"Bytes fetched from storage, all file systems{_FEW}."),
        (Row(_process(lambda p: p.read_bytes)),),
    ),
    JobMetric(
        "process-io", True,
        _counter("process_io_written_bytes", f"Bytes sent to storage, all file systems{_FEW}."),
        (Row(_process(lambda p: p.written_bytes)),),
    ),
    JobMetric(
        "process-io", True,
        _counter("process_io_read_characters", f"Bytes of all read calls, cached ones too{_FEW}."),
        (Row(_process(lambda p: p.read_characters)),),
    ),
    JobMetric(
        "process-io", True,
        _counter("process_io_written_characters", f"Bytes of all write calls{_FEW}."),
        (Row(_process(lambda p: p.written_characters)),),
    ),
    JobMetric(
        "processes", False, _gauge("processes", "Processes of the job's user in the job."),
        (Row(_process(lambda p: p.processes)),),
    ),
    JobMetric(
        "processes", False, _gauge("threads", "Threads in the job."), (Row(_threads),),
    ),
    JobMetric(
        "processes", False, _gauge("threads_limit", "Most threads the job may have."),
        (Row(lambda r: r.cgroup.threads_limit),),
    ),
    JobMetric(
        "processes", True,
        _counter("threads_limit_hits", "Times a fork failed at the limit of threads."),
        (Row(lambda r: r.cgroup.threads_limit_hits),),
    ),
    JobMetric(
        "open-files", False, _gauge("open_files", "Open file descriptors of the job's processes."),
        (Row(_process(lambda p: p.open_files)),),
    ),
    *(
        JobMetric(
            "network", True,
            _counter(
                f"network_{direction}_{what}",
                f"{what.capitalize()} {verb} in the job's own network namespace.", "device",
            ),
            _interface(lambda traffic, field=f"{direction}_{what}": getattr(traffic, field)),  # type: ignore[misc]
        )
        for direction, verb in (("receive", "received"), ("transmit", "sent"))
        for what in ("bytes", "packets", "errors", "drops")
    ),
    JobMetric(
        "executables", True,
        _counter(
            "executable_cpu_seconds", f"CPU time of the busiest programs{_FEW}.", "executable"
        ),
        (Rows("executable", lambda r: r.processes and r.processes.programs),),
    ),
)  # fmt: skip

JOBS = Metric("batchjob_jobs", "gauge", "Running jobs with processes on this node.", ("manager",))
IGNORED = Metric(
    "batchjob_jobs_ignored", "gauge",
    "Jobs not shown: beyond the maximum, claimed by several owners, in a user's own tree.",
    ("reason",),
)  # fmt: skip
ERRORS = Metric(
    "batchjob_job_read_errors_total",
    "counter",
    "Files of jobs that could not be read.",
    ("reason",),
)
METRICS = (JOBS, IGNORED, ERRORS, *(entry.metric for entry in JOB_METRICS))


def wanted(groups: Collection[str]) -> tuple[JobMetric, ...]:
    """The rows of the table that the groups switch on."""
    return tuple(entry for entry in JOB_METRICS if not entry.group or entry.group in groups)
