"""The readings of one job at one moment. None means "not read", never zero."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints


class DeviceIO(NamedTuple):
    """Block IO of one device since the cgroup was made."""

    read_bytes: float
    written_bytes: float
    reads: float
    writes: float


class Interface(NamedTuple):
    """Traffic of one network interface, as /proc/<pid>/net/dev counts it, or of all sockets."""

    receive_bytes: float
    receive_packets: float
    receive_errors: float | None  # None: of sockets
    receive_drops: float | None
    transmit_bytes: float
    transmit_packets: float
    transmit_errors: float | None
    transmit_drops: float | None


class FileSystemIO(NamedTuple):
    """Bytes and operations on all mounts of one type of file system."""

    read_bytes: float
    written_bytes: float
    operations: float


class CgroupKey(NamedTuple):
    """Where a version of cgroups has a number: the line `key` of a file, or its only one for ""."""

    version: Literal[1, 2]
    file: str
    key: str = ""
    per_unit: int = 1  # units of the file per unit of the field


V1, V2 = partial(CgroupKey, 1), partial(CgroupKey, 2)

MICROSECONDS = 1_000_000
NANOSECONDS = 1_000_000_000
GAUGE = "gauge"
"""Marks a field that is 0 once its directory is removed; all others are sums or peaks, and stay."""

Number = float | None


class CgroupReading(NamedTuple):
    """The kernel's numbers for a job's directories: seconds, bytes, counts.

    Each field names its file (Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/); a field
    without one is computed from several numbers (`collectors.jobs.cgroups`). Only the `total_` keys
    of v1's memory.stat include the steps below a job's directory.
    """

    # fmt: off
    cpu_user_seconds: Annotated[Number, V2("cpu.stat", "user_usec", MICROSECONDS)] = None
    cpu_system_seconds: Annotated[Number, V2("cpu.stat", "system_usec", MICROSECONDS)] = None
    cpu_throttled_seconds: Annotated[Number, V1("cpu.stat", "throttled_time", NANOSECONDS),
        V2("cpu.stat", "throttled_usec", MICROSECONDS)] = None
    cpu_throttled_periods: Annotated[Number, V1("cpu.stat", "nr_throttled"),
        V2("cpu.stat", "nr_throttled")] = None
    cpu_periods: Annotated[Number, V1("cpu.stat", "nr_periods"),
        V2("cpu.stat", "nr_periods")] = None
    cpus: Annotated[Number, GAUGE] = None
    memory_current: Annotated[Number, V1("memory.usage_in_bytes"), V2("memory.current"),
        GAUGE] = None
    memory_peak: Annotated[Number, V1("memory.max_usage_in_bytes"), V2("memory.peak")] = None
    memory_limit: Annotated[Number, V2("memory.max"), GAUGE] = None
    memory_anon: Annotated[Number, V1("memory.stat", "total_rss"), V2("memory.stat", "anon"),
        GAUGE] = None
    memory_file: Annotated[Number, V1("memory.stat", "total_cache"), V2("memory.stat", "file"),
        GAUGE] = None
    memory_shmem: Annotated[Number, V1("memory.stat", "total_shmem"), V2("memory.stat", "shmem"),
        GAUGE] = None
    memory_kernel: Annotated[Number, V1("memory.kmem.usage_in_bytes"), V2("memory.stat", "kernel"),
        GAUGE] = None
    memory_mapped: Annotated[Number, V1("memory.stat", "total_mapped_file"),
        V2("memory.stat", "file_mapped"), GAUGE] = None
    memory_inactive_file: Annotated[Number, V1("memory.stat", "total_inactive_file"),
        V2("memory.stat", "inactive_file"), GAUGE] = None
    memory_swap: Annotated[Number, V1("memory.stat", "total_swap"), V2("memory.swap.current"),
        GAUGE] = None
    page_faults: Annotated[Number, V1("memory.stat", "total_pgfault"),
        V2("memory.stat", "pgfault")] = None
    page_faults_major: Annotated[Number, V1("memory.stat", "total_pgmajfault"),
        V2("memory.stat", "pgmajfault")] = None
    memory_limit_hits: Annotated[Number, V2("memory.events", "max")] = None
    oom_kills: Annotated[Number, V2("memory.events", "oom_kill")] = None
    cpu_waiting_seconds: Annotated[Number, V2("cpu.pressure", "some", MICROSECONDS)] = None
    cpu_stalled_seconds: Annotated[Number, V2("cpu.pressure", "full", MICROSECONDS)] = None
    memory_waiting_seconds: Annotated[Number, V2("memory.pressure", "some", MICROSECONDS)] = None
    memory_stalled_seconds: Annotated[Number, V2("memory.pressure", "full", MICROSECONDS)] = None
    io_waiting_seconds: Annotated[Number, V2("io.pressure", "some", MICROSECONDS)] = None
    io_stalled_seconds: Annotated[Number, V2("io.pressure", "full", MICROSECONDS)] = None
    threads: Annotated[Number, V1("pids.current"), V2("pids.current"), GAUGE] = None
    threads_peak: Annotated[Number, V1("pids.peak"), V2("pids.peak")] = None  # Linux 6.1
    threads_limit: Annotated[Number, V1("pids.max"), V2("pids.max"), GAUGE] = None
    threads_limit_hits: Annotated[Number, V1("pids.events", "max"), V2("pids.events", "max")] = None
    io: Annotated[Mapping[str, DeviceIO] | None, V2("io.stat")] = None  # device name → counters
    # fmt: on


EMPTY_CGROUP_READING = CgroupReading()


def gauges(reading: type) -> frozenset[str]:
    hints = get_type_hints(reading, include_extras=True)
    return frozenset(name for name, hint in hints.items() if GAUGE in get_args(hint)[1:])


_GAUGES = gauges(CgroupReading)


def keep_counters(reading: CgroupReading) -> CgroupReading:
    """What a removed directory still contributes to its job: its counters and peaks."""
    zeros: dict[str, Any] = {field: 0 for field in _GAUGES if getattr(reading, field) is not None}
    return reading._replace(**zeros)


class ProcessReading(NamedTuple):
    """What /proc shows of a job's processes, read outside of the scrape path."""

    processes: int | None = None
    threads: int | None = None
    threads_seen: int | None = None  # the most of all scans
    open_files: int | None = None
    open_files_limit: int | None = None  # sum over all processes
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: float | None = None
    written_bytes: float | None = None
    read_characters: float | None = None
    written_characters: float | None = None
    network: Mapping[str, Interface] | None = None


NO_PROCESS_READING = ProcessReading()


class JobReading(NamedTuple):
    """One job at the moment of a scrape: what was read, and what is derived from it."""

    started_at: float | None
    ended_at: float | None
    cpu_user_seconds: float | None
    cpu_system_seconds: float | None
    threads: float | None
    working_set: float | None
    minor_faults: float | None
    cgroup: CgroupReading
    processes: ProcessReading
    file_systems: Mapping[str, FileSystemIO] | None = None  # None: not alone on the node


def job_reading(
    started_at: float | None,
    ended_at: float | None,
    cgroup: CgroupReading,
    processes: ProcessReading = NO_PROCESS_READING,
) -> JobReading:
    """Combine the readings of a job; times are epoch seconds.

    Without the controllers cpuacct or pids, the sums over processes take their place.
    """
    user, system, threads = cgroup.cpu_user_seconds, cgroup.cpu_system_seconds, cgroup.threads
    current, inactive = cgroup.memory_current, cgroup.memory_inactive_file
    faults, major = cgroup.page_faults, cgroup.page_faults_major
    return JobReading(
        started_at,
        ended_at,
        cpu_user_seconds=processes.cpu_user_seconds if user is None else user,
        cpu_system_seconds=processes.cpu_system_seconds if system is None else system,
        threads=processes.threads if threads is None else threads,
        # The two values were read at different times, so the difference may be negative.
        working_set=None if current is None or inactive is None else max(0, current - inactive),
        minor_faults=None if faults is None or major is None else faults - major,
        cgroup=cgroup,
        processes=processes,
    )


def sum_readings(readings: Iterable[CgroupReading]) -> CgroupReading:
    """The sum over a job's directories, of the numbers that all of them have."""
    parts = list(readings)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return EMPTY_CGROUP_READING
    columns = zip(*(part[:-1] for part in parts), strict=True)
    numbers = dict(zip(CgroupReading._fields, map(_sum_if_all_known, columns), strict=False))
    return CgroupReading(**numbers)._replace(io=_sum_devices([part.io for part in parts]))


def _sum_if_all_known(column: tuple[Any, ...]) -> Any:
    known = [value for value in column if value is not None]
    return sum(known) if len(known) == len(column) else None


def _sum_devices(parts: list[Mapping[str, DeviceIO] | None]) -> Mapping[str, DeviceIO] | None:
    if any(part is None for part in parts):
        return None
    devices: dict[str, DeviceIO] = {}
    for part in parts:
        for device, io in (part or {}).items():
            seen = devices.get(device)
            devices[device] = (
                io if seen is None else DeviceIO(*map(sum, zip(seen, io, strict=True)))
            )
    return devices
