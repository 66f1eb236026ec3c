"""Which metric shows which number of a job: the table."""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from collectors.jobs.state.job_identity import INFO_LABELS
from collectors.metric import NO_LABELS, JoinedLabels, Labels, Metric, Sample, labels


class MetricValue(NamedTuple):
    """One sample per job: a number of its `JobReading`, by name. None: not read, so no sample."""

    field: str
    labels: Labels = NO_LABELS

    def shown(self, number: float | None, of_job: JoinedLabels) -> Sample | None:
        """The job's sample."""
        return None if number is None else (of_job[self.labels], number)

    def together(self, column: Iterable[Any]) -> Iterable[Sample]:
        """The samples of all jobs, from what is shown of each."""
        return filter(None, column)


class MetricValues(NamedTuple):
    """One sample per job and device, interface or program, from a mapping in its `JobReading`."""

    field: str
    label: str
    of_each: Callable[[Any], float] = float

    def shown(self, each: Mapping[str, Any] | None, of_job: JoinedLabels) -> tuple[Sample, ...]:
        """The job's samples."""
        return tuple(
            (of_job[labels(**{self.label: key})], self.of_each(value))
            for key, value in (each or {}).items()
        )

    def together(self, column: Iterable[Any]) -> Iterable[Sample]:
        """The samples of all jobs, from what is shown of each."""
        return chain.from_iterable(filter(None, column))


class InfoRow(NamedTuple):
    """One sample per job, always 1, whose labels are in its `JobReading`."""

    field: str

    def shown(self, info: Labels, of_job: JoinedLabels) -> Sample:
        """The job's sample."""
        return of_job[info], 1

    def together(self, column: Iterable[Any]) -> Iterable[Sample]:
        """The samples of all jobs, from what is shown of each."""
        return filter(None, column)


JobRow = MetricValue | MetricValues | InfoRow


class JobMetric(NamedTuple):
    """A family, the group that switches it, and whether it outlives its job.

    A finished job keeps its counters and peaks for a while; what it no longer has, such as
    memory in use, ends with it.
    """

    group: str
    lasting: bool
    metric: Metric
    rows: tuple[JobRow, ...]


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


def _device(field: str) -> tuple[MetricValues]:
    return (MetricValues("cgroup.io", "device", attrgetter(field)),)


_FEW = "; approximate: what an ended process used between two looks may be missing"
_PROCESSES = (
    ", summed over the job's processes (/proc/PID/io, with CAP_SYS_PTRACE); a lower bound: "
    "processes are looked at when some begin or end and after each scrape, and what one did after "
    "its last look is missing."
)
_DEVICES = (
    "; without network file systems and, on cgroup v1, without what the kernel wrote back later"
)

JOB_METRICS: tuple[JobMetric, ...] = (
    JobMetric(
        "", True,
        Metric(
            "batchjob_job_info", "gauge", "What is known of the job; always 1.",
            (*JOB_LABELS, *INFO_LABELS),
        ),
        (InfoRow("info"),),
    ),
    JobMetric(
        "", True, _gauge("start_time_seconds", "Start of the job's first process here, epoch."),
        (MetricValue("started_at"),),
    ),
    JobMetric(
        "", True,
        _gauge("end_time_seconds", "When the job's last process here was noticed to have ended."),
        (MetricValue("ended_at"),),
    ),
    JobMetric(
        "cpu", True,
        _counter("cpu_seconds", "CPU time of all processes the job has had.", "mode"),
        (
            MetricValue("cpu_user_seconds", labels(mode="user")),
            MetricValue("cpu_system_seconds", labels(mode="system")),
        ),
    ),
    JobMetric(
        "cpu", False,
        _gauge(
            "cpus",
            "CPUs allocated to the job: its CPU set, its quota where it has none, or for LSF its "
            "slots here.",
        ),
        (MetricValue("cgroup.cpus"),),
    ),
    JobMetric(
        "throttling", True,
        _counter("cpu_throttled_seconds", "Time in which the CPU quota kept tasks from running."),
        (MetricValue("cgroup.cpu_throttled_seconds"),),
    ),
    JobMetric(
        "throttling", True,
        _counter("cpu_throttled_periods", "Quota periods in which the job was held back."),
        (MetricValue("cgroup.cpu_throttled_periods"),),
    ),
    JobMetric(
        "throttling", True,
        _counter("cpu_periods", "Quota periods in which the job had something to run."),
        (MetricValue("cgroup.cpu_periods"),),
    ),
    JobMetric(
        "memory", False,
        _gauge("memory_current_bytes", "Memory charged to the job, page cache included."),
        (MetricValue("cgroup.memory_current"),),
    ),
    JobMetric(
        "memory", True,
        _gauge("memory_peak_bytes", "Most memory ever charged to the job, page cache included."),
        (MetricValue("cgroup.memory_peak"),),
    ),
    JobMetric(
        "memory", False,
        _gauge("memory_limit_bytes", "Nearest memory limit that holds for the job."),
        (MetricValue("cgroup.memory_limit"),),
    ),
    JobMetric(
        "memory", False,
        _gauge("memory_anon_bytes", "Anonymous memory: heap and stack, not shared memory."),
        (MetricValue("cgroup.memory_anon"),),
    ),
    JobMetric(
        "memory", False, _gauge("memory_file_bytes", "Page cache, shared memory included."),
        (MetricValue("cgroup.memory_file"),),
    ),
    JobMetric(
        "memory", False, _gauge("memory_shmem_bytes", "Shared memory and tmpfs."),
        (MetricValue("cgroup.memory_shmem"),),
    ),
    JobMetric(
        "memory-detail", False, _gauge("memory_kernel_bytes", "Kernel memory charged to the job."),
        (MetricValue("cgroup.memory_kernel"),),
    ),
    JobMetric(
        "memory-detail", False, _gauge("memory_mapped_bytes", "Page cache mapped by processes."),
        (MetricValue("cgroup.memory_mapped"),),
    ),
    JobMetric(
        "memory-detail", False,
        _gauge("memory_inactive_file_bytes", "Page cache that is reclaimed first."),
        (MetricValue("cgroup.memory_inactive_file"),),
    ),
    JobMetric(
        "memory-detail", False,
        _gauge("memory_working_set_bytes", "Memory charged less inactive page cache."),
        (MetricValue("working_set"),),
    ),
    JobMetric(
        "memory", False, _gauge("memory_swap_bytes", "Swap in use."),
        (MetricValue("cgroup.memory_swap"),),
    ),
    JobMetric(
        "faults", True,
        _counter("page_faults", "Page faults; major ones had to wait for storage.", "kind"),
        (
            MetricValue("minor_faults", labels(kind="minor")),
            MetricValue("cgroup.page_faults_major", labels(kind="major")),
        ),
    ),
    JobMetric(
        "memory", True,
        _counter("memory_limit_hits", "Times the job reached its memory limit."),
        (MetricValue("cgroup.memory_limit_hits"),),
    ),
    JobMetric(
        "memory", True, _counter("oom_kills", "Processes of the job ended by the OOM killer."),
        (MetricValue("cgroup.oom_kills"),),
    ),
    JobMetric(
        "pressure", True,
        _counter(
            "pressure_waiting_seconds", "Time in which some task waited for a resource.", "resource"
        ),
        (
            MetricValue("cgroup.cpu_waiting_seconds", labels(resource="cpu")),
            MetricValue("cgroup.memory_waiting_seconds", labels(resource="memory")),
            MetricValue("cgroup.io_waiting_seconds", labels(resource="io")),
        ),
    ),
    JobMetric(
        "pressure", True,
        _counter(
            "pressure_stalled_seconds", "Time in which all tasks waited for a resource.", "resource"
        ),
        (
            MetricValue("cgroup.cpu_stalled_seconds", labels(resource="cpu")),
            MetricValue("cgroup.memory_stalled_seconds", labels(resource="memory")),
            MetricValue("cgroup.io_stalled_seconds", labels(resource="io")),
        ),
    ),
    JobMetric(
        "io", True,
        _counter("io_read_bytes", f"Bytes read from block devices{_DEVICES}.", "device"),
        _device("read_bytes"),
    ),
    JobMetric(
        "io", True,
        _counter("io_written_bytes", f"Bytes written to block devices{_DEVICES}.", "device"),
        _device("written_bytes"),
    ),
    JobMetric(
        "io", True,
        _counter("io_reads", f"Read operations on block devices{_DEVICES}.", "device"),
        _device("reads"),
    ),
    JobMetric(
        "io", True,
        _counter("io_writes", f"Write operations on block devices{_DEVICES}.", "device"),
        _device("writes"),
    ),
    JobMetric(
        "process-io", True,
        _counter(
            "process_io_read_bytes", f"Bytes fetched from storage, all file systems{_PROCESSES}"
        ),
        (MetricValue("processes.read_bytes"),),
    ),
    JobMetric(
        "process-io", True,
        _counter(
            "process_io_written_bytes", f"Bytes sent to storage, all file systems{_PROCESSES}"
        ),
        (MetricValue("processes.written_bytes"),),
    ),
    JobMetric(
        "process-io", True,
        _counter(
            "process_io_read_characters", f"Bytes of all read calls, cached ones too{_PROCESSES}"
        ),
        (MetricValue("processes.read_characters"),),
    ),
    JobMetric(
        "process-io", True,
        _counter(
            "process_io_written_characters", f"Bytes of all write calls{_PROCESSES}"
        ),
        (MetricValue("processes.written_characters"),),
    ),
    JobMetric(
        "processes", False, _gauge("processes", "Processes of the job's user in the job."),
        (MetricValue("processes.processes"),),
    ),
    JobMetric(
        "processes", False, _gauge("threads", "Threads in the job."), (MetricValue("threads"),),
    ),
    JobMetric(
        "processes", False, _gauge("threads_limit", "Most threads the job may have."),
        (MetricValue("cgroup.threads_limit"),),
    ),
    JobMetric(
        "processes", True,
        _counter("threads_limit_hits", "Times a fork failed at the limit of threads."),
        (MetricValue("cgroup.threads_limit_hits"),),
    ),
    JobMetric(
        "open-files", False, _gauge("open_files", "Open file descriptors of the job's processes."),
        (MetricValue("processes.open_files"),),
    ),
    *(
        JobMetric(
            "network", True,
            _counter(
                f"network_{direction}_{what}",
                f"{what.capitalize()} {verb} in the job's own network namespace.", "device",
            ),
            (MetricValues("processes.network", "device", attrgetter(f"{direction}_{what}")),),
        )
        for direction, verb in (("receive", "received"), ("transmit", "sent"))
        for what in ("bytes", "packets", "errors", "drops")
    ),
    JobMetric(
        "executables", True,
        _counter(
            "executable_cpu_seconds", f"CPU time of the busiest programs{_FEW}.", "executable"
        ),
        (MetricValues("processes.programs", "executable"),),
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
