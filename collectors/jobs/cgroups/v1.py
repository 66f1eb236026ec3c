"""cgroup v1: controller and file → fields (Linux Documentation/admin-guide/cgroup-v1/)."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from batchjob.quantities.reading import DeviceIO
from collectors.jobs.cgroups.formats import (
    CgroupFile,
    CgroupParts,
    DeviceNames,
    cpu_list_file,
    fields_by_file,
    number_file,
    parse_uint64,
    single_field,
)
from collectors.jobs.cgroups.reader import read_path

_NO_LIMIT = 2**62  # memory.txt: "no limit" is LONG_MAX rounded down to the page size, which varies
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_FIELDS = fields_by_file(1)


def sources(groups: Collection[str], devices: DeviceNames) -> Mapping[str, tuple[CgroupFile, ...]]:
    """The files to read per controller for the wanted metric groups."""
    table: Mapping[str, tuple[CgroupFile, ...]] = {
        "cpuacct": (
            number_file(_FIELDS, "cpuacct.usage", "cpu", sampled=True),
            number_file(_FIELDS, "cpuacct.stat", "cpu", sampled=True),
        ),
        "cpu": (
            number_file(_FIELDS, "cpu.stat", "cpu"),
            CgroupFile("cpu.cfs_quota_us", "cpu", _parse_quota, rare=True),
            number_file(_FIELDS, "cpu.cfs_period_us", "cpu", rare=True),
        ),
        "cpuset": (
            cpu_list_file(_FIELDS, "cpuset.cpus"),
            cpu_list_file(_FIELDS, "cpuset.effective_cpus"),
        ),
        "memory": (
            number_file(_FIELDS, "memory.usage_in_bytes", "memory"),
            number_file(_FIELDS, "memory.max_usage_in_bytes", "memory", sampled=True),
            number_file(_FIELDS, "memory.kmem.usage_in_bytes", "memory"),
            number_file(_FIELDS, "memory.failcnt", "memory"),
            number_file(_FIELDS, "memory.memsw.failcnt", "memory"),
            number_file(_FIELDS, "memory.stat", "memory"),
        ),
        "blkio": (
            _blkio_file("blkio.throttle.io_service_bytes_recursive", devices),
            _blkio_file("blkio.throttle.io_serviced_recursive", devices),
        ),
        "pids": (
            number_file(_FIELDS, "pids.current", "processes"),
            number_file(_FIELDS, "pids.max", "processes", rare=True),
            number_file(_FIELDS, "pids.events", "processes"),
        ),
    }
    return {
        controller: tuple(source for source in files if source.group in groups)
        for controller, files in table.items()
    }


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


def combine(parts: CgroupParts, previous_user: float) -> dict[str, Any]:
    """The fields of a reading that depend on several files; one that is not known is left out.

    cpuacct.stat counts in ticks of 10 ms, which is a tenth of a short job; cpuacct.usage is exact.
    So system time is the former's and user time the rest, but never less than `previous_user`: a
    tick added to the one must not be taken from the other.
    """
    fields: dict[str, Any] = {}
    if parts.cpu_seconds is not None and parts.cpu_system_ticks is not None:
        system = parts.cpu_system_ticks / _TICKS_PER_SECOND
        fields["cpu_system_seconds"] = system
        fields["cpu_user_seconds"] = max(parts.cpu_seconds - system, previous_user)
    limit = parts.memory_hierarchical_limit
    if limit is not None and limit < _NO_LIMIT:
        fields["memory_limit"] = limit
    if parts.memory_failures is not None:
        fields["memory_limit_hits"] = parts.memory_failures + (parts.memsw_failures or 0)
    if parts.io_bytes is not None and parts.io_operations is not None:
        fields["io"] = _device_io(parts.io_bytes, parts.io_operations)
    return fields


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
