"""cgroup v2: file → fields (Linux Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst)."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from batchjob.quantities.reading import V2, DeviceIO
from collectors.jobs.cgroups.devices import DeviceNames
from collectors.jobs.cgroups.fields import field_of, number_parser, targets
from collectors.jobs.cgroups.formats import count_list, whole
from collectors.jobs.cgroups.reader import CgroupFile, read_path

_FIELDS = targets(V2)
LIMIT_FIELD = field_of(_FIELDS["memory.max"])


def sources(groups: Collection[str], devices: DeviceNames) -> tuple[CgroupFile, ...]:
    """The files to read for the wanted metric groups, each with its parser.

    All are hierarchical: a job's directory includes its steps, even ended ones. Hence
    memory.events, not memory.events.local.
    """
    table = (
        _numbers("cpu.stat", "cpu", brief=True),
        CgroupFile("cpu.max", "cpu", _quota, rare=True),
        _cpus("cpuset.cpus"),
        _cpus("cpuset.cpus.effective"),
        _numbers("memory.current", "memory"),
        _numbers("memory.peak", "memory", brief=True),
        _numbers("memory.swap.current", "memory"),
        _numbers("memory.events", "memory"),
        _numbers("memory.stat", "memory"),
        _pressure("cpu.pressure"),
        _pressure("memory.pressure"),
        _pressure("io.pressure"),
        CgroupFile(
            "io.stat",
            "io",
            lambda data: {field_of(_FIELDS["io.stat"]): parse_io_stat(data, devices)},
            may_be_empty=True,  # until the first IO
        ),
        _numbers("pids.current", "processes"),
        _numbers("pids.max", "processes", rare=True),
        _numbers("pids.events", "processes"),
    )
    return tuple(source for source in table if source.group in groups)


def _numbers(file: str, group: str, *, rare: bool = False, brief: bool = False) -> CgroupFile:
    return CgroupFile(file, group, number_parser(_FIELDS[file]), rare=rare, brief=brief)


def _cpus(file: str) -> CgroupFile:
    field = field_of(_FIELDS[file])
    return CgroupFile(file, "cpu", lambda data: {field: count_list(data)}, rare=True)


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
                limits.append(whole(text))
        except FileNotFoundError:
            pass  # the controller is not enabled this far down
        except (OSError, ValueError):
            return None  # the unknown limit could be the lowest
        path = os.path.dirname(path)
    return min(limits, default=None)


def _quota(data: bytes) -> Mapping[str, Any]:
    quota, period = data.split()
    return {} if quota == b"max" else {field_of(_FIELDS["cpu.max"]): whole(quota) / whole(period)}


def _pressure(file: str) -> CgroupFile:
    (waiting, microseconds), (stalled, _) = _FIELDS[file]["some"], _FIELDS[file]["full"]

    def parse(data: bytes) -> Mapping[str, Any]:
        """The lines `some` and `full`; kernels before 5.13 have no `full` for cpu."""
        some, _, full = data.partition(b"\n")
        values = {waiting: _total(some, b"some ") / microseconds}
        if full:
            values[stalled] = _total(full, b"full ") / microseconds
        return values

    return CgroupFile(file, "pressure", parse)


def _total(line: bytes, begin: bytes) -> int:
    if not line.startswith(begin):
        raise ValueError(f"expected a line {begin!r}")
    return whole(line[line.rindex(b"total=") + 6 :])


def parse_io_stat(data: bytes, devices: DeviceNames) -> dict[str, DeviceIO]:
    """Lines `8:0 rbytes=1 wbytes=2 rios=3 wios=4 ...`; a device without counters is left out."""
    read: dict[str, DeviceIO] = {}
    for line in data.splitlines():
        number, *pairs = line.decode("ascii").split()
        counters = dict(pair.split("=", 1) for pair in pairs)
        name = devices.name(number)
        if name is not None and "rbytes" in counters:
            keys = ("rbytes", "wbytes", "rios", "wios")
            read[name] = DeviceIO(*(whole(counters[key]) for key in keys))
    return read
