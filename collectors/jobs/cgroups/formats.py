"""What is read from which cgroup file, by the annotations of the fields of a reading, and how.

The formats are those of Linux Documentation/admin-guide/cgroup-v2.rst, "Format".
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from batchjob.quantities.reading import (
    GAUGE,
    NANOSECONDS,
    V1,
    V2,
    CgroupKey,
    CgroupReading,
    Number,
    gauges,
)
from batchjob.runtime.values import parse_cpu_list
from collectors.host import list_directory
from collectors.jobs.cgroups.reader import ReadErrors

Parse = Callable[[bytes], Mapping[str, Any]]
"""Field → value; ValueError or LookupError for a text that is not in the file's format."""

SAMPLED = "sampled"
"""The files of all groups of metrics that are read between scrapes as well, as a group."""


class CgroupFile(NamedTuple):
    """A file of a directory, and how it is read.

    `parse` returns field → value and raises ValueError for text that is not in the file's format.
    """

    file: str
    group: str
    parse: Parse
    rare: bool = False  # read at intervals only: a limit or a CPU set
    may_be_empty: bool = False  # other files end with a line feed even if they have no value
    sampled: bool = False  # also read between scrapes, so that short jobs have it

    def belongs_to(self, group: str | None) -> bool:
        """Whether it is read with this group; None means all groups."""
        return group is None or group == self.group or (group == SAMPLED and self.sampled)


BytesByDevice = Mapping[str, tuple[int, int]]  # bytes, or number, of reads and writes


class RawValues(NamedTuple):
    """Numbers from files that fill a field of a reading only in combination."""

    # fmt: off
    cpu_seconds: Annotated[Number, V1("cpuacct.usage", "", NANOSECONDS)] = None
    cpu_system_ticks: Annotated[Number, V1("cpuacct.stat", "system")] = None
    cfs_quota: Annotated[Number, V1("cpu.cfs_quota_us"), GAUGE] = None
    cfs_period: Annotated[Number, V1("cpu.cfs_period_us"), GAUGE] = None
    quota_cpus: Annotated[Number, V2("cpu.max"), GAUGE] = None
    cpuset_cpus: Annotated[Number, V1("cpuset.cpus"), V2("cpuset.cpus"), GAUGE] = None
    effective_cpus: Annotated[Number, V1("cpuset.effective_cpus"), V2("cpuset.cpus.effective"),
        GAUGE] = None
    memory_hierarchical_limit: Annotated[Number, V1("memory.stat", "hierarchical_memory_limit"),
        GAUGE] = None
    memory_failures: Annotated[Number, V1("memory.failcnt")] = None
    memsw_failures: Annotated[Number, V1("memory.memsw.failcnt")] = None
    io_bytes: Annotated[BytesByDevice | None,
        V1("blkio.throttle.io_service_bytes_recursive")] = None
    io_operations: Annotated[BytesByDevice | None,
        V1("blkio.throttle.io_serviced_recursive")] = None
    # fmt: on


GAUGE_FIELDS = gauges(CgroupReading) | gauges(RawValues)
"""The fields that no longer apply once their directory is removed."""

FieldTargets = Mapping[str, tuple[str, int]]  # key in the file → field, and its `per_unit`


def fields_by_file(version: Literal[1, 2]) -> Mapping[str, FieldTargets]:
    """The fields to set from each file, by its keys."""
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for reading in (CgroupReading, RawValues):
        for field, hint in get_type_hints(reading, include_extras=True).items():
            for source in get_args(hint)[1:]:
                if isinstance(source, CgroupKey) and source.version == version:
                    found.setdefault(source.file, {})[source.key] = (field, source.per_unit)
    return found


# The group of metrics for which a controller's files are read, where it has another name.
_GROUPS = {"cpuacct": "cpu", "cpuset": "cpu", "blkio": "io", "pids": "processes"}
# Limits and CPU sets, which are read at intervals only.
_RARE = frozenset(
    {"cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "pids.max"}
    | {"cpuset.cpus", "cpuset.cpus.effective", "cpuset.effective_cpus"}
)
# Read between scrapes as well, so that short jobs have them; with the version of cgroups.
_SAMPLED = frozenset(
    {(2, "cpu.stat"), (2, "memory.peak"), (1, "cpuacct.usage"), (1, "cpuacct.stat")}
    | {(1, "memory.max_usage_in_bytes"), (1, "pids.peak"), (2, "pids.peak")}
)
# Its limits of all directories above count as well (`v2.memory_limit`).
_HIERARCHICAL_LIMIT = "memory.max"


def files_to_read(
    version: Literal[1, 2], groups: Collection[str], parsers: Mapping[str, Parse]
) -> Mapping[str, tuple[CgroupFile, ...]]:
    """The files to read for these groups of metrics, by controller.

    `parsers`: those of files that have neither numbers by key, nor one number, nor a list of CPUs.
    """
    found: dict[str, tuple[CgroupFile, ...]] = {}
    for file, targets in fields_by_file(version).items():
        controller, _, name = file.partition(".")
        group = "pressure" if name == "pressure" else _GROUPS.get(controller, controller)
        if group not in groups or file == _HIERARCHICAL_LIMIT:
            continue
        source = CgroupFile(
            file,
            group,
            parsers.get(file) or _number_parser(targets, is_cpu_list=controller == "cpuset"),
            rare=file in _RARE,
            may_be_empty=file == "io.stat",  # until the first IO
            sampled=(version, file) in _SAMPLED,
        )
        found[controller] = (*found.get(controller, ()), source)
    return found


def _number_parser(targets: FieldTargets, *, is_cpu_list: bool) -> Parse:
    if is_cpu_list:  # of which the number counts
        field = single_field(targets)
        return lambda data: {field: count_list(data)}
    return single(*targets[""]) if "" in targets else flat_keyed(targets)


def single_field(fields: FieldTargets) -> str:
    ((field, _),) = fields.values()
    return field


def allocated_cpus(raw: RawValues) -> float | None:
    """CPUs by the CPU set, else by the quota; an empty CPU set is inherited, not an allocation."""
    if raw.cpuset_cpus:
        return raw.cpuset_cpus if raw.effective_cpus is None else raw.effective_cpus
    if raw.cfs_quota is not None and raw.cfs_period:
        return raw.cfs_quota / raw.cfs_period
    return raw.quota_cpus


def flat_keyed(fields: Mapping[str, tuple[str, int]]) -> Parse:
    """A parser of `key value` lines (cgroup-v2.rst, "Flat keyed"): key → (field, divisor).

    Unknown keys are ignored and missing ones left out. A kernel writes the keys of a file in a
    fixed order, so their lines are remembered: reading 8 of 50 keys costs a quarter of reading all.
    """
    wanted = {key.encode(): target for key, target in fields.items()}
    pattern, names, divided = _compile_lines(b"", wanted)

    def parse(data: bytes) -> Mapping[str, Any]:
        nonlocal pattern, names, divided
        match = pattern.fullmatch(data)
        if match is None:
            pattern, names, divided = _compile_lines(data, wanted)
            match = pattern.fullmatch(data)
            if match is None:
                raise ValueError("not lines of a key and a number")
        values: dict[str, float] = dict(zip(names, map(int, match.groups()), strict=True))
        for field, divisor in divided:
            values[field] /= divisor
        return values

    return parse


def _compile_lines(
    data: bytes, wanted: Mapping[bytes, tuple[str, int]]
) -> tuple[re.Pattern[bytes], tuple[str, ...], tuple[tuple[str, int], ...]]:
    """A pattern with a group for each wanted number, their fields, and those to be divided."""
    pattern, skipped, targets = b"", 0, []
    for line in data.splitlines():
        key = line.partition(b" ")[0]
        if key in wanted:
            pattern += rb"(?:.*+\n){%d}+%s (\d{1,20})\n" % (skipped, re.escape(key))
            skipped = 0
            targets.append(wanted[key])
        else:
            skipped += 1
    return (
        re.compile(pattern + rb"(?:.*+\n){%d}+" % skipped),
        tuple(field for field, _ in targets),
        tuple((field, divisor) for field, divisor in targets if divisor != 1),
    )


def parse_uint64(text: bytes | str) -> int:
    """Parse a number as the kernel writes it: 64 bits, so at most 20 digits and a line feed.

    Raises ValueError for anything else: a sign, digits of other scripts or with `_` between them,
    or more than fit a sample.
    """
    digits = text.strip()
    if len(text) > 21 or not (digits.isdigit() and digits.isascii()):
        raise ValueError("not a number of 64 bits")
    return int(digits)


def single(field: str, divisor: int = 1) -> Parse:
    """A parser of a file with one number; `max` means no limit."""

    def parse(data: bytes) -> Mapping[str, Any]:
        if data == b"max\n":
            return {}
        return {field: parse_uint64(data) if divisor == 1 else parse_uint64(data) / divisor}

    return parse


def count_list(data: bytes) -> int:
    """The number of CPUs in a list such as `0-3,8`; 0 if it is empty."""
    text = data.decode().strip()
    return len(parse_cpu_list(text)) if text else 0


# Linux Documentation/admin-guide/devices.txt: RAM disks and loop devices store nothing themselves.
_NO_STORAGE_MAJORS = frozenset({"1", "7"})


class DeviceNames:
    """`8:0` → `sda`, cached. Safe in several threads: at worst, a look-up is done twice."""

    def __init__(self, sysfs: str, errors: ReadErrors) -> None:
        self._sysfs = sysfs
        self.errors = errors
        self._names: dict[str, str | None] = {}

    def name(self, number: str) -> str | None:
        """The device's name, its number if sysfs has no name, or None if it is left out.

        A stacked device (LVM, md) passes its requests on to others, which count them again. What is
        not a number is counted once as malformed: the kernel writes `(unknown)` for a device
        without a disk, such as a hidden path of NVMe multipath.
        """
        if number not in self._names:
            self._names[number] = self._look_up(number)
        return self._names[number]

    def _look_up(self, number: str) -> str | None:
        major, colon, minor = number.partition(":")
        if not (colon and major.isdigit() and minor.isdigit()):
            self.errors.count("malformed")
            return None
        link = f"{self._sysfs}/dev/block/{number}"
        # A partition, or a device unknown to sysfs, has no such directory: it is not stacked.
        if major in _NO_STORAGE_MAJORS or list_directory(f"{link}/slaves"):
            return None
        return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else number
