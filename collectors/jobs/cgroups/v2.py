"""cgroup v2: file → fields (Linux Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst)."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from collectors.jobs.cgroups.devices import DeviceNames
from collectors.jobs.cgroups.formats import Parse, count_list, flat_keyed, single, whole
from collectors.jobs.cgroups.reader import CgroupFile, read_path
from collectors.jobs.reading import DeviceIO

_MICROSECONDS = 1_000_000


def sources(groups: Collection[str], devices: DeviceNames) -> tuple[CgroupFile, ...]:
    """The files to read for the metric groups wanted, each with a parser of its own.

    All are hierarchical: a job's directory counts its steps, ended ones included. Hence
    memory.events and not memory.events.local.
    """
    table = (
        CgroupFile(
            "cpu.stat",
            "cpu",
            flat_keyed(
                {
                    "user_usec": ("cpu_user_seconds", _MICROSECONDS),
                    "system_usec": ("cpu_system_seconds", _MICROSECONDS),
                    "nr_periods": ("cpu_periods", 1),
                    "nr_throttled": ("cpu_throttled_periods", 1),
                    "throttled_usec": ("cpu_throttled_seconds", _MICROSECONDS),
                }
            ),
            brief=True,
        ),
        CgroupFile("cpu.max", "cpu", _quota, rare=True),
        CgroupFile("cpuset.cpus", "cpu", lambda data: {"cpuset_cpus": count_list(data)}, rare=True),
        CgroupFile(
            "cpuset.cpus.effective",
            "cpu",
            lambda data: {"effective_cpus": count_list(data)},
            rare=True,
        ),
        CgroupFile("memory.current", "memory", single("memory_current")),
        CgroupFile("memory.peak", "memory", single("memory_peak"), brief=True),
        CgroupFile("memory.swap.current", "memory", single("memory_swap")),
        CgroupFile(
            "memory.events",
            "memory",
            flat_keyed(
                {
                    "max": ("memory_limit_hits", 1),
                    "oom_kill": ("oom_kills", 1),
                }
            ),
        ),
        CgroupFile(
            "memory.stat",
            "memory",
            flat_keyed(
                {
                    "anon": ("memory_anon", 1),
                    "file": ("memory_file", 1),
                    "shmem": ("memory_shmem", 1),
                    "kernel": ("memory_kernel", 1),
                    "file_mapped": ("memory_mapped", 1),
                    "inactive_file": ("memory_inactive_file", 1),
                    "pgfault": ("page_faults", 1),
                    "pgmajfault": ("page_faults_major", 1),
                }
            ),
        ),
        CgroupFile("cpu.pressure", "pressure", _pressure("cpu")),
        CgroupFile("memory.pressure", "pressure", _pressure("memory")),
        CgroupFile("io.pressure", "pressure", _pressure("io")),
        CgroupFile(
            "io.stat",
            "io",
            lambda data: {"io": parse_io_stat(data, devices)},
            may_be_empty=True,  # until there was IO
        ),
        CgroupFile("pids.current", "processes", single("threads")),
        CgroupFile("pids.max", "processes", single("threads_limit"), rare=True),
        CgroupFile("pids.events", "processes", flat_keyed({"max": ("threads_limit_hits", 1)})),
    )
    return tuple(source for source in table if source.group in groups)


def memory_limit(path: str, root: str) -> int | None:
    """The least finite memory.max from a directory up to the mount; None where none limits.

    Slurm leaves `max` where its allocation does not constrain memory, and a limit of an ancestor
    (a pod, a slice) holds as well.
    """
    limits = []
    while len(path) > len(root):
        try:
            text = read_path(f"{path}/memory.max")
            if text != b"max\n":
                limits.append(whole(text))
        except FileNotFoundError:
            pass  # the controller is off up to here
        except (OSError, ValueError):
            return None  # it could be the least
        path = os.path.dirname(path)
    return min(limits, default=None)


def _quota(data: bytes) -> Mapping[str, Any]:
    quota, period = data.split()
    return {} if quota == b"max" else {"cpus": whole(quota) / whole(period)}


def _pressure(resource: str) -> Parse:
    waiting, stalled = f"{resource}_waiting_seconds", f"{resource}_stalled_seconds"

    def parse(data: bytes) -> Mapping[str, Any]:
        """A line `some`, and a line `full`, which kernels before 5.13 do not write for cpu."""
        some, _, full = data.partition(b"\n")
        values = {waiting: _total_seconds(some, b"some ")}
        if full:
            values[stalled] = _total_seconds(full, b"full ")
        return values

    return parse


def _total_seconds(line: bytes, begin: bytes) -> float:
    if not line.startswith(begin):
        raise ValueError(f"expected a line {begin!r}")
    return whole(line[line.rindex(b"total=") + 6 :]) / _MICROSECONDS


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
