"""cgroup v2: file → fields (Linux Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst)."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from batchjob.quantities.reading import DeviceIO
from collectors.jobs.cgroups.formats import (
    CgroupFile,
    DeviceNames,
    cpu_list_file,
    fields_by_file,
    number_file,
    parse_uint64,
    single_field,
)
from collectors.jobs.cgroups.reader import read_path

_FIELDS = fields_by_file(2)
LIMIT_FIELD = single_field(_FIELDS["memory.max"])


def sources(groups: Collection[str], devices: DeviceNames) -> tuple[CgroupFile, ...]:
    """The files to read for the wanted metric groups, each with its parser.

    All are hierarchical: a job's directory includes its steps, even ended ones. Hence
    memory.events, not memory.events.local.
    """
    table = (
        number_file(_FIELDS, "cpu.stat", "cpu", sampled=True),
        CgroupFile("cpu.max", "cpu", _parse_quota, rare=True),
        cpu_list_file(_FIELDS, "cpuset.cpus"),
        cpu_list_file(_FIELDS, "cpuset.cpus.effective"),
        number_file(_FIELDS, "memory.current", "memory"),
        number_file(_FIELDS, "memory.peak", "memory", sampled=True),
        number_file(_FIELDS, "memory.swap.current", "memory"),
        number_file(_FIELDS, "memory.events", "memory"),
        number_file(_FIELDS, "memory.stat", "memory"),
        _pressure_file("cpu.pressure"),
        _pressure_file("memory.pressure"),
        _pressure_file("io.pressure"),
        CgroupFile(
            "io.stat",
            "io",
            lambda data: {single_field(_FIELDS["io.stat"]): parse_io_stat(data, devices)},
            may_be_empty=True,  # until the first IO
        ),
        number_file(_FIELDS, "pids.current", "processes"),
        number_file(_FIELDS, "pids.max", "processes", rare=True),
        number_file(_FIELDS, "pids.events", "processes"),
    )
    return tuple(source for source in table if source.group in groups)


def memory_limit(path: str, root: str) -> int | None:
    """The lowest finite memory.max from a directory up to the mount; None if there is none.

    Slurm leaves `max` if its allocation does not constrain memory, and limits of ancestors (a pod,
    a slice) apply as well.
    """
    limits = []
    while len(path) > len(root):
        try:
            text = read_path(f"{path}/memory.max")
            if text != b"max\n":
                limits.append(parse_uint64(text))
        except FileNotFoundError:
            pass  # the controller is not enabled this far down
        except (OSError, ValueError):
            return None  # the unknown limit could be the lowest
        path = os.path.dirname(path)
    return min(limits, default=None)


def _parse_quota(data: bytes) -> Mapping[str, Any]:
    quota, period = data.split()
    if quota == b"max":
        return {}
    return {single_field(_FIELDS["cpu.max"]): parse_uint64(quota) / parse_uint64(period)}


def _pressure_file(file: str) -> CgroupFile:
    (waiting, microseconds), (stalled, _) = _FIELDS[file]["some"], _FIELDS[file]["full"]

    def parse(data: bytes) -> Mapping[str, Any]:
        """The lines `some` and `full`; kernels before 5.13 have no `full` for cpu."""
        some, _, full = data.partition(b"\n")
        values = {waiting: _parse_total(some, b"some ") / microseconds}
        if full:
            values[stalled] = _parse_total(full, b"full ") / microseconds
        return values

    return CgroupFile(file, "pressure", parse)


def _parse_total(line: bytes, begin: bytes) -> int:
    if not line.startswith(begin):
        raise ValueError(f"expected a line {begin!r}")
    return parse_uint64(line[line.rindex(b"total=") + 6 :])


def parse_io_stat(data: bytes, devices: DeviceNames) -> dict[str, DeviceIO]:
    """Lines `8:0 rbytes=1 wbytes=2 rios=3 wios=4 ...`; a device without counters is left out.

    Some kernels write the numbers of such devices before that of the next one, on its line.
    """
    devices_io: dict[str, DeviceIO] = {}
    for line in data.decode(errors="replace").splitlines():
        numbers, equal_sign, rest = line.partition("=")
        *names, first_key = numbers.split() or [""]
        if not (equal_sign and names):
            continue
        name = devices.name(names[-1])
        if name is None:
            continue
        try:
            counters = dict(pair.split("=", 1) for pair in f"{first_key}={rest}".split())
            values = [parse_uint64(counters[key]) for key in ("rbytes", "wbytes", "rios", "wios")]
        except (ValueError, KeyError):
            devices.skip_row()
        else:
            devices_io[name] = DeviceIO(*values)
    return devices_io
