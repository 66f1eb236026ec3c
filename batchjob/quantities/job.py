"""The table of a job's quantities: CPU, memory, pressure, IO, processes, network.

They are in the order in which the exporter exposes them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from batchjob.quantities.quantity import (
    ExportedMetric,
    MetricGroup,
    Quantity,
    SampleGroup,
    Unit,
    job_metric,
)
from batchjob.quantities.reading import DeviceIO, FileSystemIO, Interface, JobReading

METRIC_GROUPS: Mapping[MetricGroup, str] = {
    "cpu": "CPU time and CPUs allocated",
    "throttling": "periods and time in which a CPU quota throttled the job",
    "memory": "memory in use, peak and limit, by anonymous, file and shared, OOM kills",
    "memory-detail": "kernel, mapped and inactive memory, working set",
    "faults": "page faults",
    "pressure": "time lost waiting for CPU, memory and IO (PSI)",
    "io": "block IO per device, where the io controller is enabled",
    "process-io": "IO calls and bytes summed over processes: the only view of network file systems",
    "processes": "processes, threads and their limit",
    "open-files": "open files",
    "network": "traffic of jobs that have their own network namespace, or with batchjob_helper",
    "file-systems": "bytes and operations on NFS and Lustre of jobs that are alone on a node",
}
DEFAULT_METRIC_GROUPS: tuple[MetricGroup, ...] = (
    "cpu", "memory", "faults", "pressure", "io", "process-io", "processes", "network",
)  # fmt: skip

IO = SampleGroup("io", ("device",), "io_")
NETWORK = SampleGroup("network", ("device",), "network_")
FILE_SYSTEMS = SampleGroup("file_systems", ("type",), "file_system_")

_Read = Callable[[JobReading], float | None]


def _gauge(
    name: str, unit: Unit, group: MetricGroup, read: _Read, help: str, *, outlives_job: bool = False
) -> Quantity:
    return Quantity(name, job_metric(name, "gauge", unit, group, help, outlives_job), read)


def _counter(name: str, unit: Unit, group: MetricGroup, read: _Read, help: str) -> Quantity:
    return Quantity(name, job_metric(name, "counter", unit, group, help), read)


def _one_of(metric: ExportedMetric, name: str, read: _Read, **labels: str) -> Quantity:
    return Quantity(name, metric, read, tuple(labels.items()))


def _by_device(
    name: str, unit: Unit, read_each: Callable[[DeviceIO], float], help: str
) -> Quantity:
    note = "network file systems and, on cgroup v1, delayed write-back are not included"
    metric = job_metric(name, "counter", unit, "io", f"{help}; {note}.", labels=IO.labels)
    return Quantity(name, metric, lambda job: job.cgroup.io, group=IO, read_each=read_each)


_AT_SOCKETS = (
    "; with batchjob_helper, of a job without one at its sockets, except loopback "
    '(device="sockets")'
)


def _by_interface(
    name: str, unit: Unit, read_each: Callable[[Interface], float | None], counted: str
) -> Quantity:
    of_sockets = "" if unit == "count" and "ackets" not in counted else _AT_SOCKETS
    help = f"{counted} in the job's own network namespace{of_sockets}."
    metric = job_metric(name, "counter", unit, "network", help, labels=NETWORK.labels)
    return Quantity(
        name, metric, lambda job: job.processes.network, group=NETWORK, read_each=read_each
    )


def _by_file_system(
    name: str, unit: Unit, read_each: Callable[[FileSystemIO], float], help: str
) -> Quantity:
    note = (
        "counted while the job was alone on the node, with what the node's own services did. "
        "Absent while there is another job, for both"
    )
    metric = job_metric(
        name, "counter", unit, "file-systems", f"{help}, {note}.", labels=FILE_SYSTEMS.labels
    )
    return Quantity(
        name, metric, lambda job: job.file_systems, group=FILE_SYSTEMS, read_each=read_each
    )


_PROCESS_IO_NOTE = (
    ", summed over the job's processes. With batchjob_helper, exact: each thread is counted at "
    "its end. Otherwise (/proc/PID/io, with CAP_SYS_PTRACE) a lower bound: processes are sampled "
    "when one starts or ends and after each scrape, so IO between the last sample of a process and "
    "its end is missing."
)

# fmt: off
START_TIME = _gauge("start_time_seconds", "epoch", "", lambda job: job.started_at,
    "Start time of the job's first process on this node, in Unix time.", outlives_job=True)
END_TIME = _gauge("end_time_seconds", "epoch", "", lambda job: job.ended_at,
    "Time at which the end of the job's last process on this node was detected, in Unix time.",
    outlives_job=True)

CPU_SECONDS = job_metric("cpu_seconds", "counter", "seconds", "cpu",
    "CPU time of all processes of the job, including processes that have ended.", labels=("mode",))
CPU_USER = _one_of(CPU_SECONDS, "cpu_user_seconds", lambda job: job.cpu_user_seconds, mode="user")
CPU_SYSTEM = _one_of(CPU_SECONDS, "cpu_system_seconds", lambda job: job.cpu_system_seconds,
    mode="system")
CPUS = _gauge("cpus", "cpus", "cpu", lambda job: job.cgroup.cpus,
    "CPUs allocated to the job on this node: its CPU set, else its CPU quota, else (LSF) its "
    "slots.")
CPU_THROTTLED_SECONDS = _counter("cpu_throttled_seconds", "seconds", "throttling",
    lambda job: job.cgroup.cpu_throttled_seconds,
    "Time for which tasks were throttled by the CPU quota.")
CPU_THROTTLED_PERIODS = _counter("cpu_throttled_periods", "count", "throttling",
    lambda job: job.cgroup.cpu_throttled_periods,
    "CPU quota periods in which the job was throttled.")
CPU_PERIODS = _counter("cpu_periods", "count", "throttling", lambda job: job.cgroup.cpu_periods,
    "CPU quota periods in which the job was runnable.")

MEMORY_CURRENT = _gauge("memory_current_bytes", "bytes", "memory",
    lambda job: job.cgroup.memory_current,
    "Memory charged to the job, including page cache.")
MEMORY_PEAK = _gauge("memory_peak_bytes", "bytes", "memory", lambda job: job.cgroup.memory_peak,
    "Maximum memory ever charged to the job, including page cache.", outlives_job=True)
MEMORY_LIMIT = _gauge("memory_limit_bytes", "bytes", "memory", lambda job: job.cgroup.memory_limit,
    "Lowest memory limit that applies to the job.")
MEMORY_ANON = _gauge("memory_anon_bytes", "bytes", "memory", lambda job: job.cgroup.memory_anon,
    "Anonymous memory: heap and stack, not shared memory.")
MEMORY_FILE = _gauge("memory_file_bytes", "bytes", "memory", lambda job: job.cgroup.memory_file,
    "Page cache, including shared memory.")
MEMORY_SHMEM = _gauge("memory_shmem_bytes", "bytes", "memory", lambda job: job.cgroup.memory_shmem,
    "Shared memory and tmpfs.")
MEMORY_KERNEL = _gauge("memory_kernel_bytes", "bytes", "memory-detail",
    lambda job: job.cgroup.memory_kernel,
    "Kernel memory charged to the job.")
MEMORY_MAPPED = _gauge("memory_mapped_bytes", "bytes", "memory-detail",
    lambda job: job.cgroup.memory_mapped,
    "Page cache mapped by processes.")
MEMORY_INACTIVE_FILE = _gauge("memory_inactive_file_bytes", "bytes", "memory-detail",
    lambda job: job.cgroup.memory_inactive_file,
    "Inactive page cache, which is reclaimed first.")
MEMORY_WORKING_SET = _gauge("memory_working_set_bytes", "bytes", "memory-detail",
    lambda job: job.working_set,
    "Memory charged minus inactive page cache.")
MEMORY_SWAP = _gauge("memory_swap_bytes", "bytes", "memory", lambda job: job.cgroup.memory_swap,
    "Swap in use.")

PAGE_FAULTS = job_metric("page_faults", "counter", "count", "faults",
    "Page faults; major faults required a read from storage.", labels=("kind",))
PAGE_FAULTS_MINOR = _one_of(PAGE_FAULTS, "page_faults_minor", lambda job: job.minor_faults,
    kind="minor")
PAGE_FAULTS_MAJOR = _one_of(PAGE_FAULTS, "page_faults_major",
    lambda job: job.cgroup.page_faults_major, kind="major")
MEMORY_LIMIT_HITS = _counter("memory_limit_hits", "count", "memory",
    lambda job: job.cgroup.memory_limit_hits,
    "Number of times the job reached its memory limit.")
OOM_KILLS = _counter("oom_kills", "count", "memory", lambda job: job.cgroup.oom_kills,
    "Processes of the job that the OOM killer terminated.")

WAITING_SECONDS = job_metric("pressure_waiting_seconds", "counter", "seconds", "pressure",
    "Time in which at least one task waited for the resource (PSI some).", labels=("resource",))
CPU_WAITING = _one_of(WAITING_SECONDS, "cpu_waiting_seconds",
    lambda job: job.cgroup.cpu_waiting_seconds, resource="cpu")
MEMORY_WAITING = _one_of(WAITING_SECONDS, "memory_waiting_seconds",
    lambda job: job.cgroup.memory_waiting_seconds, resource="memory")
IO_WAITING = _one_of(WAITING_SECONDS, "io_waiting_seconds",
    lambda job: job.cgroup.io_waiting_seconds, resource="io")
STALLED_SECONDS = job_metric("pressure_stalled_seconds", "counter", "seconds", "pressure",
    "Time in which all non-idle tasks waited for the resource (PSI full).", labels=("resource",))
CPU_STALLED = _one_of(STALLED_SECONDS, "cpu_stalled_seconds",
    lambda job: job.cgroup.cpu_stalled_seconds, resource="cpu")
MEMORY_STALLED = _one_of(STALLED_SECONDS, "memory_stalled_seconds",
    lambda job: job.cgroup.memory_stalled_seconds, resource="memory")
IO_STALLED = _one_of(STALLED_SECONDS, "io_stalled_seconds",
    lambda job: job.cgroup.io_stalled_seconds, resource="io")

IO_READ_BYTES = _by_device("io_read_bytes", "bytes", lambda io: io.read_bytes,
    "Bytes read from block devices")
IO_WRITTEN_BYTES = _by_device("io_written_bytes", "bytes", lambda io: io.written_bytes,
    "Bytes written to block devices")
IO_READS = _by_device("io_reads", "count", lambda io: io.reads, "Read operations on block devices")
IO_WRITES = _by_device("io_writes", "count", lambda io: io.writes,
    "Write operations on block devices")

PROCESS_IO_READ_BYTES = _counter("process_io_read_bytes", "bytes", "process-io",
    lambda job: job.processes.read_bytes,
    f"Bytes fetched from storage, all file systems{_PROCESS_IO_NOTE}")
PROCESS_IO_WRITTEN_BYTES = _counter("process_io_written_bytes", "bytes", "process-io",
    lambda job: job.processes.written_bytes,
    f"Bytes sent to storage, all file systems{_PROCESS_IO_NOTE}")
PROCESS_IO_READ_CHARACTERS = _counter("process_io_read_characters", "bytes", "process-io",
    lambda job: job.processes.read_characters,
    f"Bytes of all read calls, including reads from the page cache{_PROCESS_IO_NOTE}")
PROCESS_IO_WRITTEN_CHARACTERS = _counter("process_io_written_characters", "bytes", "process-io",
    lambda job: job.processes.written_characters,
    f"Bytes of all write calls{_PROCESS_IO_NOTE}")

PROCESSES = _gauge("processes", "count", "processes", lambda job: job.processes.processes,
    "Processes of the job that run as its user.")
THREADS = _gauge("threads", "count", "processes", lambda job: job.threads, "Threads in the job.")
_THREADS_PEAK = job_metric("threads_peak", "gauge", "count", "processes",
    'Most threads that the job had at once. kind="counted": by the kernel (Linux 6.1, with the '
    'pids controller), with those of the scheduler. kind="seen", without such a count: the most '
    "of its scans, which miss short ones.", labels=("kind",))
THREADS_PEAK = _one_of(_THREADS_PEAK, "threads_peak", lambda job: job.cgroup.threads_peak,
    kind="counted")
THREADS_SEEN = _one_of(_THREADS_PEAK, "threads_seen",
    lambda job: job.processes.threads_seen if job.cgroup.threads_peak is None else None,
    kind="seen")
THREADS_LIMIT = _gauge("threads_limit", "count", "processes", lambda job: job.cgroup.threads_limit,
    "Maximum number of threads of the job.")
THREADS_LIMIT_HITS = _counter("threads_limit_hits", "count", "processes",
    lambda job: job.cgroup.threads_limit_hits,
    "Number of forks that failed because of the thread limit.")
OPEN_FILES = _gauge("open_files", "count", "open-files", lambda job: job.processes.open_files,
    "Open file descriptors of the job's processes.")
OPEN_FILES_LIMIT = _gauge("open_files_limit", "count", "open-files",
    lambda job: job.processes.open_files_limit,
    "Sum of the soft limits of open files of the job's processes.")

NETWORK_RECEIVE_BYTES = _by_interface("network_receive_bytes", "bytes",
    lambda each: each.receive_bytes, "Bytes received")
NETWORK_RECEIVE_PACKETS = _by_interface("network_receive_packets", "count",
    lambda each: each.receive_packets, "Packets received")
NETWORK_RECEIVE_ERRORS = _by_interface("network_receive_errors", "count",
    lambda each: each.receive_errors, "Errors received")
NETWORK_RECEIVE_DROPS = _by_interface("network_receive_drops", "count",
    lambda each: each.receive_drops, "Drops received")
NETWORK_TRANSMIT_BYTES = _by_interface("network_transmit_bytes", "bytes",
    lambda each: each.transmit_bytes, "Bytes sent")
NETWORK_TRANSMIT_PACKETS = _by_interface("network_transmit_packets", "count",
    lambda each: each.transmit_packets, "Packets sent")
NETWORK_TRANSMIT_ERRORS = _by_interface("network_transmit_errors", "count",
    lambda each: each.transmit_errors, "Errors sent")
NETWORK_TRANSMIT_DROPS = _by_interface("network_transmit_drops", "count",
    lambda each: each.transmit_drops, "Drops sent")

FILE_SYSTEM_READ_BYTES = _by_file_system("file_system_read_bytes", "bytes",
    lambda each: each.read_bytes, "Bytes received from NFS servers, or of read calls on Lustre")
FILE_SYSTEM_WRITTEN_BYTES = _by_file_system("file_system_written_bytes", "bytes",
    lambda each: each.written_bytes, "Bytes sent to NFS servers, or of write calls on Lustre")
FILE_SYSTEM_OPERATIONS = _by_file_system("file_system_operations", "count",
    lambda each: each.operations, "Requests to NFS servers, or calls on Lustre")

# fmt: on

# Collected from the module's globals, so that no quantity can be left out.
_ALL: list[Any] = list(globals().values())
JOB_QUANTITIES = tuple(each for each in _ALL if isinstance(each, Quantity))
