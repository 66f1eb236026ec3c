"""cgroup v2: file → fields (Linux Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst)."""

import os
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from batchjob.quantities.reading import DeviceIO
from collectors.host import read_path
from collectors.jobs.cgroups.formats import (
    CgroupFile,
    DeviceNames,
    FieldTargets,
    Parse,
    fields_by_file,
    files_to_read,
    parse_uint64,
    single_field,
)

_FIELDS = fields_by_file(2)
LIMIT_FIELD = single_field(_FIELDS["memory.max"])


def sources(groups: Collection[str], devices: DeviceNames) -> tuple[CgroupFile, ...]:
    """The files to read for the wanted metric groups, each with its parser.

    All are hierarchical: a job's directory includes its steps, even ended ones. Hence
    memory.events, not memory.events.local.
    """
    pressure = ("cpu.pressure", "memory.pressure", "io.pressure")
    io_field = single_field(_FIELDS["io.stat"])
    parsers: dict[str, Parse] = {
        "cpu.max": _parse_quota,
        "io.stat": lambda data: {io_field: parse_io_stat(data, devices)},
        **{file: _pressure_parser(_FIELDS[file]) for file in pressure},
    }
    return tuple(chain.from_iterable(files_to_read(2, groups, parsers).values()))


def memory_limit(path: str, root: str) -> int | None:
    """The lowest finite memory.max from a directory up to the mount; None if there is none.

    Slurm leaves `max` if it does not constrain memory; limits of ancestors (pod, slice) apply too.
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


def _pressure_parser(fields: FieldTargets) -> Parse:
    (waiting, microseconds), (stalled, _) = fields["some"], fields["full"]

    def parse(data: bytes) -> Mapping[str, Any]:
        """The lines `some` and `full`; kernels before 5.13 have no `full` for cpu."""
        some, _, full = data.partition(b"\n")
        values = {waiting: _parse_total(some, b"some ") / microseconds}
        if full:
            values[stalled] = _parse_total(full, b"full ") / microseconds
        return values

    return parse


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
            devices.errors.count("malformed")
        else:
            devices_io[name] = DeviceIO(*values)
    return devices_io
