"""cgroup v1: controller and file → fields (Linux Documentation/admin-guide/cgroup-v1/)."""

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from batchjob.quantities.reading import V1, DeviceIO
from collectors.jobs.cgroups.devices import DeviceNames
from collectors.jobs.cgroups.fields import CgroupParts, field_of, number_parser, targets
from collectors.jobs.cgroups.formats import count_list, whole
from collectors.jobs.cgroups.reader import CgroupFile, read_path

_NO_LIMIT = 2**62  # memory.txt: "no limit" is LONG_MAX rounded down to the page size, which varies
_TICKS = os.sysconf("SC_CLK_TCK")
_FIELDS = targets(V1)


def sources(groups: Collection[str], devices: DeviceNames) -> Mapping[str, tuple[CgroupFile, ...]]:
    """The files to read per controller for the wanted metric groups."""
    table: Mapping[str, tuple[CgroupFile, ...]] = {
        "cpuacct": (
            _numbers("cpuacct.usage", "cpu", brief=True),
            _numbers("cpuacct.stat", "cpu", brief=True),
        ),
        "cpu": (
            _numbers("cpu.stat", "cpu"),
            CgroupFile("cpu.cfs_quota_us", "cpu", _quota, rare=True),
            _numbers("cpu.cfs_period_us", "cpu", rare=True),
        ),
        "cpuset": (_cpus("cpuset.cpus"), _cpus("cpuset.effective_cpus")),
        "memory": (
            _numbers("memory.usage_in_bytes", "memory"),
            _numbers("memory.max_usage_in_bytes", "memory", brief=True),
            _numbers("memory.kmem.usage_in_bytes", "memory"),
            _numbers("memory.failcnt", "memory"),
            _numbers("memory.memsw.failcnt", "memory"),
            _numbers("memory.stat", "memory"),
        ),
        "blkio": (
            _blkio("blkio.throttle.io_service_bytes_recursive", devices),
            _blkio("blkio.throttle.io_serviced_recursive", devices),
        ),
        "pids": (
            _numbers("pids.current", "processes"),
            _numbers("pids.max", "processes", rare=True),
            _numbers("pids.events", "processes"),
        ),
    }
    return {
        controller: tuple(source for source in files if source.group in groups)
        for controller, files in table.items()
    }


def _numbers(file: str, group: str, *, rare: bool = False, brief: bool = False) -> CgroupFile:
    return CgroupFile(file, group, number_parser(_FIELDS[file]), rare=rare, brief=brief)


def _cpus(file: str) -> CgroupFile:
    field = field_of(_FIELDS[file])
    return CgroupFile(file, "cpu", lambda data: {field: count_list(data)}, rare=True)


def oom_kills(path: str) -> int | None:
    """OOM kills of processes in this very directory (kernel 4.13).

    v1 counts a kill only in the victim's own cgroup (mm/memcontrol.c, memcg_memory_event), which is
    a task directory below the job's.
    """
    for line in read_path(f"{path}/memory.oom_control").splitlines():
        key, _, value = line.partition(b" ")
        if key == b"oom_kill":
            return whole(value)
    return None


class Combined(NamedTuple):
    """Fields of a reading computed from several numbers; None leaves the value of a file."""

    cpu_user_seconds: float | None
    cpu_system_seconds: float | None
    memory_limit: float | None
    memory_limit_hits: float | None
    io: Mapping[str, DeviceIO] | None


def combined(parts: CgroupParts, user_before: float) -> Combined:
    """Combine the parts.

    cpuacct.stat counts in ticks of 10 ms, which is a tenth of a short job; cpuacct.usage is exact.
    So system time is the former's and user time the rest, but never less than `user_before`: a tick
    added to the one must not be taken from the other.
    """
    user = system = hits = None
    seconds, ticks = parts.cpu_seconds, parts.cpu_system_ticks
    if seconds is not None and ticks is not None:
        system = ticks / _TICKS
        user = max(seconds - system, user_before)
    limit = parts.memory_hierarchical_limit
    if parts.memory_failures is not None:
        hits = parts.memory_failures + (parts.memsw_failures or 0)
    transferred, operations = parts.io_bytes, parts.io_operations
    counted = transferred is not None and operations is not None
    return Combined(
        user,
        system,
        None if limit is None or limit >= _NO_LIMIT else limit,
        hits,
        _devices(transferred or {}, operations or {}) if counted else None,
    )


def _devices(
    transferred: Mapping[str, tuple[int, int]], operations: Mapping[str, tuple[int, int]]
) -> dict[str, DeviceIO]:
    return {
        device: DeviceIO(*transferred[device], *operations[device])
        for device in transferred
        if device in operations
    }


def _quota(data: bytes) -> Mapping[str, Any]:
    return {} if data == b"-1\n" else {field_of(_FIELDS["cpu.cfs_quota_us"]): whole(data)}


def _blkio(file: str, devices: DeviceNames) -> CgroupFile:
    field = field_of(_FIELDS[file])

    def parse(data: bytes) -> Mapping[str, Any]:
        """Lines `8:0 Read 1`, `8:0 Write 2`, ..., and a last `Total 3` (blkio-controller.rst).

        Since Linux 6.10 nothing is counted until a throttle is set (block/blk-throttle.c): without
        a line of any device, the job's IO is not known.
        """
        read: dict[str, dict[str, int]] = {}
        counted = False
        for line in data.decode("ascii").splitlines():
            words = line.split()
            if len(words) == 3:
                counted = True
                name = devices.name(words[0])
                if name is not None:
                    read.setdefault(name, {})[words[1]] = whole(words[2])
        if not counted:
            return {}
        return {
            field: {
                name: (ops["Read"], ops["Write"])
                for name, ops in read.items()
                if "Read" in ops and "Write" in ops
            }
        }

    return CgroupFile(file, "io", parse)
