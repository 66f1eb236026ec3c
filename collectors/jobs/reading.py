"""What is read of one job at one moment. None is "not read", never zero."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from collectors.metric import Labels


class DeviceIO(NamedTuple):
    """Block IO of one device since the cgroup was made."""

    read_bytes: float
    written_bytes: float
    reads: float
    writes: float


class Interface(NamedTuple):
    """Traffic of one network interface, as /proc/<pid>/net/dev counts it."""

    receive_bytes: float
    receive_packets: float
    receive_errors: float
    receive_drops: float
    transmit_bytes: float
    transmit_packets: float
    transmit_errors: float
    transmit_drops: float


class CgroupReading(NamedTuple):
    """The kernel's numbers of a job's directories: seconds, bytes, counts.

    Field names are the keys of the file tables in `cgroup1` and `cgroup2`.
    """

    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    cpu_throttled_seconds: float | None = None
    cpu_throttled_periods: float | None = None
    cpu_periods: float | None = None
    cpus: float | None = None
    memory_current: float | None = None
    memory_peak: float | None = None
    memory_limit: float | None = None
    memory_anon: float | None = None
    memory_file: float | None = None
    memory_shmem: float | None = None
    memory_kernel: float | None = None
    memory_mapped: float | None = None
    memory_inactive_file: float | None = None
    memory_swap: float | None = None
    page_faults: float | None = None
    page_faults_major: float | None = None
    memory_limit_hits: float | None = None
    oom_kills: float | None = None
    cpu_waiting_seconds: float | None = None
    cpu_stalled_seconds: float | None = None
    memory_waiting_seconds: float | None = None
    memory_stalled_seconds: float | None = None
    io_waiting_seconds: float | None = None
    io_stalled_seconds: float | None = None
    threads: float | None = None
    threads_limit: float | None = None
    threads_limit_hits: float | None = None
    io: Mapping[str, DeviceIO] | None = None  # device name → counters


NOTHING = CgroupReading()

# What a directory no longer has once it is gone; everything else is a sum or a peak, and stays.
GAUGES = (
    "cpus", "memory_current", "memory_limit", "memory_anon", "memory_file", "memory_shmem",
    "memory_kernel", "memory_mapped", "memory_inactive_file", "memory_swap", "threads",
    "threads_limit",
)  # fmt: skip


def ended(reading: CgroupReading) -> CgroupReading:
    """What a removed directory still adds to its job: its counters and peaks."""
    nothing: dict[str, Any] = {field: 0 for field in GAUGES if getattr(reading, field) is not None}
    return reading._replace(**nothing)


class ProcessReading(NamedTuple):
    """What /proc says of a job's processes, gathered off the scrape path."""

    processes: int | None = None
    threads: int | None = None
    open_files: int | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: float | None = None
    written_bytes: float | None = None
    read_characters: float | None = None
    written_characters: float | None = None
    programs: Mapping[str, float] | None = None  # CPU seconds of those that used most
    network: Mapping[str, Interface] | None = None


UNSEEN = ProcessReading()


class JobReading(NamedTuple):
    """One job at the moment of a scrape: what was read, and what follows from it."""

    manager: str
    labels: Labels  # manager, jobid and user
    info: Labels  # what else is known of it
    started_at: float | None
    ended_at: float | None
    cpu_user_seconds: float | None
    cpu_system_seconds: float | None
    threads: float | None
    working_set: float | None
    minor_faults: float | None
    cgroup: CgroupReading
    processes: ProcessReading

    def flat(self) -> tuple[Any, ...]:
        """All its numbers; `FLAT_FIELDS` says where which one is."""
        return (*self[:-2], *self.cgroup, *self.processes)


FLAT_FIELDS = (
    *JobReading._fields[:-2],
    *(f"cgroup.{field}" for field in CgroupReading._fields),
    *(f"processes.{field}" for field in ProcessReading._fields),
)


def job_reading(
    name: tuple[str, Labels, Labels],
    times: tuple[float | None, float | None],
    cgroup: CgroupReading,
    processes: ProcessReading,
) -> JobReading:
    """Put together what is known: (manager, labels, info), (start, end), and both readings.

    A tree without cpuacct leaves only the sum over processes, and so does one without pids.
    """
    user, system, threads = cgroup.cpu_user_seconds, cgroup.cpu_system_seconds, cgroup.threads
    current, inactive = cgroup.memory_current, cgroup.memory_inactive_file
    every, major = cgroup.page_faults, cgroup.page_faults_major
    return JobReading(
        *name,
        *times,
        cpu_user_seconds=processes.cpu_user_seconds if user is None else user,
        cpu_system_seconds=processes.cpu_system_seconds if system is None else system,
        threads=processes.threads if threads is None else threads,
        # Read at two moments.
        working_set=None if current is None or inactive is None else max(0, current - inactive),
        minor_faults=None if every is None or major is None else every - major,
        cgroup=cgroup,
        processes=processes,
    )


def total(readings: Iterable[CgroupReading]) -> CgroupReading:
    """The sum over directories of one job; what one of them lacks, the sum lacks."""
    parts = list(readings)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NOTHING
    columns = zip(*(part[:-1] for part in parts), strict=True)
    numbers = dict(zip(CgroupReading._fields, map(_sum, columns), strict=False))
    return CgroupReading(**numbers)._replace(io=_sum_devices([part.io for part in parts]))


def _sum(column: tuple[Any, ...]) -> Any:
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
