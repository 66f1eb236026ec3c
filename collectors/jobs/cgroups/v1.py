"""cgroup v1: controller and file → fields (Linux Documentation/admin-guide/cgroup-v1/)."""

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from batchjob.quantities.reading import V1, DeviceIO
from collectors.jobs.cgroups.devices import DeviceNames
from collectors.jobs.cgroups.fields import CgroupParts, fields_by_file, number_parser, single_field
from collectors.jobs.cgroups.formats import count_list, parse_uint64
from collectors.jobs.cgroups.reader import CgroupFile, read_path

_NO_LIMIT = 2**62  # memory.txt: "no limit" is LONG_MAX rounded down to the page size, which varies
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_FIELDS = fields_by_file(V1)


def sources(groups: Collection[str], devices: DeviceNames) -> Mapping[str, tuple[CgroupFile, ...]]:
    """The files to read per controller for the wanted metric groups."""
    table: Mapping[str, tuple[CgroupFile, ...]] = {
        "cpuacct": (
            _number_file("cpuacct.usage", "cpu", sampled=True),
            _number_file("cpuacct.stat", "cpu", sampled=True),
        ),
        "cpu": (
            _number_file("cpu.stat", "cpu"),
            CgroupFile("cpu.cfs_quota_us", "cpu", _parse_quota, rare=True),
            _number_file("cpu.cfs_period_us", "cpu", rare=True),
        ),
        "cpuset": (_cpu_list_file("cpuset.cpus"), _cpu_list_file("cpuset.effective_cpus")),
        "memory": (
            _number_file("memory.usage_in_bytes", "memory"),
            _number_file("memory.max_usage_in_bytes", "memory", sampled=True),
            _number_file("memory.kmem.usage_in_bytes", "memory"),
            _number_file("memory.failcnt", "memory"),
            _number_file("memory.memsw.failcnt", "memory"),
            _number_file("memory.stat", "memory"),
        ),
        "blkio": (
            _blkio_file("blkio.throttle.io_service_bytes_recursive", devices),
            _blkio_file("blkio.throttle.io_serviced_recursive", devices),
        ),
        "pids": (
            _number_file("pids.current", "processes"),
            _number_file("pids.max", "processes", rare=True),
            _number_file("pids.events", "processes"),
        ),
    }
    return {
        controller: tuple(source for source in files if source.group in groups)
        for controller, files in table.items()
    }


def _number_file(file: str, group: str, *, rare: bool = False, sampled: bool = False) -> CgroupFile:
    return CgroupFile(file, group, number_parser(_FIELDS[file]), rare=rare, sampled=sampled)


def _cpu_list_file(file: str) -> CgroupFile:
    field = single_field(_FIELDS[file])
    return CgroupFile(file, "cpu", lambda data: {field: count_list(data)}, rare=True)


def oom_kills(path: str) -> int | None:
    """OOM kills of processes in this very directory (kernel 4.13).

    v1 counts a kill only in the victim's own cgroup (mm/memcontrol.c, memcg_memory_event), which is
    a task directory below the job's.
    """
    for line in read_path(f"{path}/memory.oom_control").splitlines():
        key, _, value = line.partition(b" ")
        if key == b"oom_kill":
            return parse_uint64(value)
    return None


class Combined(NamedTuple):
    """Fields of a reading computed from several numbers; None: keep the value of the file."""

    cpu_user_seconds: float | None
    cpu_system_seconds: float | None
    memory_limit: float | None
    memory_limit_hits: float | None
    io: Mapping[str, DeviceIO] | None


def combine(parts: CgroupParts, previous_user: float) -> Combined:
    """Compute the fields that depend on several files.

    cpuacct.stat counts in ticks of 10 ms, which is a tenth of a short job; cpuacct.usage is exact.
    So system time is the former's and user time the rest, but never less than `previous_user`: a
    tick added to the one must not be taken from the other.
    """
    user = system = hits = None
    seconds, ticks = parts.cpu_seconds, parts.cpu_system_ticks
    if seconds is not None and ticks is not None:
        system = ticks / _TICKS_PER_SECOND
        user = max(seconds - system, previous_user)
    limit = parts.memory_hierarchical_limit
    if parts.memory_failures is not None:
        hits = parts.memory_failures + (parts.memsw_failures or 0)
    transferred, operations = parts.io_bytes, parts.io_operations
    is_known = transferred is not None and operations is not None
    return Combined(
        user,
        system,
        None if limit is None or limit >= _NO_LIMIT else limit,
        hits,
        _device_io(transferred or {}, operations or {}) if is_known else None,
    )


def _device_io(
    transferred: Mapping[str, tuple[int, int]], operations: Mapping[str, tuple[int, int]]
) -> dict[str, DeviceIO]:
    return {
        device: DeviceIO(*transferred[device], *operations[device])
        for device in transferred
        if device in operations
    }


def _parse_quota(data: bytes) -> Mapping[str, Any]:
    if data == b"-1\n":
        return {}
    return {single_field(_FIELDS["cpu.cfs_quota_us"]): parse_uint64(data)}


def _blkio_file(file: str, devices: DeviceNames) -> CgroupFile:
    field = single_field(_FIELDS[file])

    def parse(data: bytes) -> Mapping[str, Any]:
        """Lines `8:0 Read 1`, `8:0 Write 2`, ..., and a last `Total 3` (blkio-controller.rst).

        Since Linux 6.10 nothing is counted until a throttle is set (block/blk-throttle.c): without
        a line of any device, the job's IO is not known.
        """
        operations: dict[str, dict[str, int]] = {}
        counted = False
        for line in data.decode(errors="replace").splitlines():
            words = line.split()
            if len(words) != 3:
                continue
            counted = True
            name = devices.name(words[0])
            if name is None:
                continue
            try:
                operations.setdefault(name, {})[words[1]] = parse_uint64(words[2])
            except ValueError:
                devices.skip_row()
        if not counted:
            return {}
        return {
            field: {
                name: (ops["Read"], ops["Write"])
                for name, ops in operations.items()
                if "Read" in ops and "Write" in ops
            }
        }

    return CgroupFile(file, "io", parse)
