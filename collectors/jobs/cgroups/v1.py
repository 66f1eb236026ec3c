"""cgroup v1: controller and file → fields (Linux Documentation/admin-guide/cgroup-v1/)."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from batchjob.quantities.reading import DeviceIO
from collectors.host import read_path
from collectors.jobs.cgroups import formats

_NO_LIMIT = 2**62  # memory.txt: "no limit" is LONG_MAX rounded down to the page size, which varies
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_FIELDS = formats.fields_by_file(1)


def sources(
    groups: Collection[str], devices: formats.DeviceNames
) -> Mapping[str, tuple[formats.CgroupFile, ...]]:
    """The files to read per controller for the wanted metric groups."""
    blkio = ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive")
    parsers = {file: _blkio_parser(formats.single_field(_FIELDS[file]), devices) for file in blkio}
    return formats.files_to_read(1, groups, {"cpu.cfs_quota_us": _parse_quota, **parsers})


def oom_kills(path: str) -> int | None:
    """OOM kills of processes in this very directory (kernel 4.13).

    v1 counts a kill only in the victim's own cgroup (mm/memcontrol.c, memcg_memory_event), which is
    a task directory below the job's.
    """
    for line in read_path(f"{path}/memory.oom_control").splitlines():
        key, _, value = line.partition(b" ")
        if key == b"oom_kill":
            return formats.parse_uint64(value)
    return None


def combine(raw: formats.RawValues, previous_user: float) -> dict[str, Any]:
    """The fields of a reading that depend on several files; one that is not known is left out.

    cpuacct.stat counts in ticks of 10 ms, which is a tenth of a short job; cpuacct.usage is exact.
    So system time is the former's and user time the rest, but never less than `previous_user`: a
    tick added to the one must not be taken from the other.
    """
    fields: dict[str, Any] = {}
    if raw.cpu_seconds is not None and raw.cpu_system_ticks is not None:
        system = raw.cpu_system_ticks / _TICKS_PER_SECOND
        fields["cpu_system_seconds"] = system
        fields["cpu_user_seconds"] = max(raw.cpu_seconds - system, previous_user)
    limit = raw.memory_hierarchical_limit
    if limit is not None and limit < _NO_LIMIT:
        fields["memory_limit"] = limit
    if raw.memory_failures is not None:
        fields["memory_limit_hits"] = raw.memory_failures + (raw.memsw_failures or 0)
    transferred, operations = raw.io_bytes, raw.io_operations
    if transferred is not None and operations is not None:
        fields["io"] = {
            device: DeviceIO(*transferred[device], *operations[device])
            for device in transferred
            if device in operations
        }
    return fields


def _parse_quota(data: bytes) -> Mapping[str, Any]:
    if data == b"-1\n":
        return {}
    return {formats.single_field(_FIELDS["cpu.cfs_quota_us"]): formats.parse_uint64(data)}


def _blkio_parser(field: str, devices: formats.DeviceNames) -> formats.Parse:
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
                operations.setdefault(name, {})[words[1]] = formats.parse_uint64(words[2])
            except ValueError:
                devices.errors.count("malformed")
        if not counted:
            return {}
        return {
            field: {
                name: (ops["Read"], ops["Write"])
                for name, ops in operations.items()
                if "Read" in ops and "Write" in ops
            }
        }

    return parse
