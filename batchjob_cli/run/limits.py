"""Limits of a run, and the cgroup files that enforce them.

Sources: Linux Documentation/admin-guide/cgroup-v2.rst; cgroup-v1/memory.rst and
blkio-controller.rst; scheduler/sched-bwc.rst.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.runtime.formatting import size as format_size

_PERIOD_MICROSECONDS = 100_000
_MINIMUM_QUOTA_MICROSECONDS = 1000  # minimum quota, sched-bwc.rst


class CgroupError(Exception):
    """A cgroup cannot be created, or a limit not be applied; the text says which and why."""


class RunLimits(NamedTuple):
    """The requested limits; None: unlimited."""

    cpus: float | None = None
    memory_bytes: int | None = None
    io_bytes_per_second: int | None = None  # each for reading and writing


def excess_over_machine(limits: RunLimits) -> str:
    """What the limits ask for that this machine does not have, with both numbers; "": nothing."""
    cpus = os.cpu_count() or 1
    if limits.cpus and limits.cpus > cpus:
        return f"--cpus: {limits.cpus:g} asked for, this machine has {cpus}"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if limits.memory_bytes and limits.memory_bytes > memory:
        asked = format_size(limits.memory_bytes)
        return f"--memory: {asked} asked for, this machine has {format_size(memory)}"
    return ""


class Setting(NamedTuple):
    """A value for a file of the run's cgroup."""

    flag: str
    controller: str
    file: str
    value: str
    is_optional: bool = False  # skip it on a kernel without swap accounting


def required_controllers(limits: RunLimits, version: int) -> dict[str, str]:
    """The controllers that the limits need, each with the flag that needs it."""
    names = ("cpu", "memory", "io" if version == 2 else "blkio")
    requested = zip(names, ("--cpus", "--memory", "--io"), limits, strict=True)
    return {name: flag for name, flag, value in requested if value}


def cgroup_settings(limits: RunLimits, version: int, directory: str) -> Iterator[Setting]:
    """What to write, in order. `directory`: IO is limited on its device."""
    if limits.cpus:
        quota = max(_MINIMUM_QUOTA_MICROSECONDS, round(limits.cpus * _PERIOD_MICROSECONDS))
        if version == 2:
            yield Setting("--cpus", "cpu", "cpu.max", f"{quota} {_PERIOD_MICROSECONDS}")
        else:
            yield Setting("--cpus", "cpu", "cpu.cfs_period_us", str(_PERIOD_MICROSECONDS))
            yield Setting("--cpus", "cpu", "cpu.cfs_quota_us", str(quota))
    if limits.memory_bytes:
        # Memory and swap together: a job at its limit is killed instead of swapping.
        size = str(limits.memory_bytes)
        if version == 2:
            files = ("memory.max", size), ("memory.swap.max", "0")
        else:
            files = ("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)
        for file, value in files:
            yield Setting("--memory", "memory", file, value, is_optional="sw" in file)
    if speed := limits.io_bytes_per_second:
        disk = find_disk(directory)
        if version == 2:
            yield Setting("--io", "io", "io.max", f"{disk} rbps={speed} wbps={speed}")
        else:
            for way in ("read", "write"):
                file = f"blkio.throttle.{way}_bps_device"
                yield Setting("--io", "blkio", file, f"{disk} {speed}")


def find_disk(directory: str, sysfs: str = "/sys") -> str:
    """`8:0`, the whole disk of a directory: the kernel does not accept partitions.

    Raises CgroupError if there is no block device: network file systems, tmpfs, btrfs, overlay.
    """
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    entry = Path(sysfs, "dev/block", number)
    if not entry.exists():
        raise CgroupError(
            f"--io: {directory} is not on a block device, so its IO cannot be limited"
        )
    if (entry / "partition").exists():
        number = (entry.resolve().parent / "dev").read_text(encoding="ascii").strip()
    return number
