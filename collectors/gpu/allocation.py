"""The GPUs allocated to a job, from all available sources, the most trustworthy first.

Files that root wrote and the devices cgroup precede the environment, which belongs to the user.
Numbers are used only if it is certain what they refer to.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from batchjob.schedulers import registry
from batchjob.schedulers.node import GpuNames, lines_of, listed
from collectors.gpu.devices import GpuTable, Unit, Vendor, read_device_majors
from collectors.host import Host
from collectors.jobs.view import JobHolder

NVIDIA_MAJOR = 195  # Linux, Documentation/admin-guide/devices.txt; minors 254 and 255 are not GPUs


class Allocation(NamedTuple):
    """The statement of one source; `unknown` are its names that match no GPU of this node."""

    source: str
    units: frozenset[Unit]
    unknown: tuple[str, ...] = ()
    trusted: bool = False  # stated by root or the kernel, not by the user's environment


class Site(NamedTuple):
    """A site's statements about its nodes."""

    slurm_numbers: str = "index"  # or "minor"
    cuda_numbers: str = "local"  # or "index", "minor"
    positions: tuple[str, ...] = ()  # scheduler's number → GPU, if the order differs
    pbs_homes: tuple[str, ...] = ()


class AllocationContext(NamedTuple):
    """What is read once for all jobs."""

    table: GpuTable
    site: Site
    named_by_prolog: Mapping[str, frozenset[str]]  # job id → names of files
    capability_major: int | None  # of /dev/nvidia-caps/*
    hostname: str


def look(
    host: Host, table: GpuTable, site: Site, named_by_prolog: Mapping[str, frozenset[str]]
) -> AllocationContext:
    """Read what does not depend on a job."""
    try:
        with open(os.path.join(host.procfs, "sys/kernel/hostname"), encoding="utf-8") as file:
            hostname = file.read().strip()
    except OSError:
        hostname = ""
    return AllocationContext(
        table,
        site,
        named_by_prolog,
        read_device_majors(host).get("nvidia-caps"),
        hostname.partition(".")[0],
    )


def allocations(holder: JobHolder, seen: AllocationContext) -> list[Allocation]:
    """The statement of each source on the job, the most trustworthy first."""
    said = (source(holder, seen) for source in SOURCES)
    return [each for each in said if each is not None and (each.units or each.unknown)]


def _from_prolog(holder: JobHolder, seen: AllocationContext) -> Allocation | None:
    names = seen.named_by_prolog.get(holder.name.jobid, frozenset())
    return _trusted(_translated("prolog", sorted(names), lambda name: _job_file(seen.table, name)))


def _job_file(table: GpuTable, name: str) -> tuple[Unit, ...]:
    gpu, _, instance = name.partition(".")
    if not _is_number(gpu):
        return table.named(name)
    if instance:
        return table.of_instance(int(gpu), int(instance))
    return table.at_index(int(gpu), "nvidia")


def _from_scheduler_files(holder: JobHolder, seen: AllocationContext) -> Allocation | None:
    """Files that the scheduler's daemon has written as root."""
    said = registry.node_side(holder.name.manager).gpus_of_files
    names = said(seen.site.pbs_homes, holder.name.jobid, seen.hostname) if said else None
    return _trusted(_named(names, holder, seen)) if names else None


def _trusted(allocation: Allocation | None) -> Allocation | None:
    return allocation and allocation._replace(trusted=True)


def _named(names: GpuNames, holder: JobHolder, seen: AllocationContext) -> Allocation | None:
    table, words = seen.table, names.names
    match names.numbers:
        case "visible":
            return _visible(names.source, words, names.pci_order, holder, seen)
        case "listed":
            return _translated(names.source, words, lambda word: _position(seen, word))
        case "index":
            return _translated(
                names.source, words, lambda word: table.at_index(int(word), "nvidia")
            )
        case "minor":
            return _translated(names.source, words, lambda word: _minor_or_name(table, word))


def _from_devices(holder: JobHolder, seen: AllocationContext) -> Allocation | None:
    """The devices that a v1 devices cgroup allows."""
    if not registry.node_side(holder.name.manager).lists_devices:
        return None
    table = seen.table
    lists = [_allowed(os.path.join(directory, "devices.list")) for directory in holder.directories]
    devices = {device for each in lists if each is not None for device in each}
    units: set[Unit] = set()
    for major, minor in devices:
        if major == seen.capability_major:
            units.update(table.at_capability(minor))
    for major, minor in devices:
        if major == NVIDIA_MAJOR and minor < 254:
            boards = table.at_minor(minor, "nvidia")
            # The device of a GPU in MIG mode is shared by its instances; the capabilities state
            # which of them are allowed.
            units.update(unit for unit in boards if not unit.gpu.partitioned)
    return Allocation("devices", frozenset(units), trusted=True) if units else None


_DEVICE = re.compile(r"c (\d+):(\d+) [rwm]+")


def _allowed(path: str) -> set[tuple[int, int]] | None:
    """Character devices by number; None if everything is allowed or the list cannot be read."""
    lines = lines_of(path)
    if not lines or any(line.startswith("a ") for line in lines):
        return None
    found = (_DEVICE.fullmatch(line) for line in lines)
    return {(int(match[1]), int(match[2])) for match in found if match}


def _from_scheduler_variables(holder: JobHolder, seen: AllocationContext) -> Allocation | None:
    """Variables set by the scheduler; the first one that names something counts."""
    said = registry.node_side(holder.name.manager).gpus_of_variables
    for names in said(holder.environs) if said else ():
        if names.names and (names.numbers != "listed" or _positions_are_sure(seen)):
            return _named(names, holder, seen)
    return None


def _positions_are_sure(seen: AllocationContext) -> bool:
    """False with MIG instances or a second vendor, which are in the scheduler's list, too."""
    table = seen.table
    return bool(seen.site.positions) or (table.one_vendor and not table.partitioned)


def _position(seen: AllocationContext, word: str) -> tuple[Unit, ...]:
    if not _is_number(word):
        return seen.table.named(word)
    number, positions = int(word), seen.site.positions
    if positions:
        return spoken(seen.table, positions[number]) if number < len(positions) else ()
    if seen.site.slurm_numbers == "minor":
        return seen.table.at_minor(number)
    return seen.table.at_index(number)


def spoken(table: GpuTable, name: str) -> tuple[Unit, ...]:
    """A GPU as a site writes it: `index:3`, `minor:3`, a UUID or a PCI address."""
    kind, _, number = name.partition(":")
    if kind == "index" and _is_number(number):
        return table.at_index(int(number))
    if kind == "minor" and _is_number(number):
        return table.at_minor(int(number))
    return table.named(name)


def _minor_or_name(table: GpuTable, word: str) -> tuple[Unit, ...]:
    return table.at_minor(int(word), "nvidia") if _is_number(word) else table.named(word)


def _from_cuda(holder: JobHolder, seen: AllocationContext) -> Allocation | None:
    """LSF also sets CUDA_VISIBLE_DEVICES<n> for task n; the job has the GPUs of all its tasks."""
    environs = holder.environs
    words = [
        word
        for environ in environs
        for name in sorted(environ)
        if _CUDA.fullmatch(name)
        for word in listed(environ[name])
    ]
    pci_order = all(environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" for environ in environs)
    return _visible("CUDA_VISIBLE_DEVICES", words, pci_order, holder, seen)


_CUDA = re.compile(r"CUDA_VISIBLE_DEVICES\d*")


def _from_rocr(holder: JobHolder, seen: AllocationContext) -> Allocation | None:
    """Like CUDA_VISIBLE_DEVICES, for ROCm: `GPU-<unique id in hex>` or numbers."""
    source, table = "ROCR_VISIBLE_DEVICES", seen.table
    words = [word for environ in holder.environs for word in listed(environ.get(source))]
    names = [word for word in words if not _is_number(word)]
    if names:
        return _translated(source, names, table.named)
    if _all_of(words, table, "amd"):
        return _translated(source, words, lambda word: table.at_index(int(word), "amd"))
    return None


def _visible(
    source: str, words: Sequence[str], pci_order: bool, holder: JobHolder, seen: AllocationContext
) -> Allocation | None:
    """CUDA_VISIBLE_DEVICES: names are unambiguous, but numbers count what the job may see.

    They are certain if they name as many GPUs as the node has, if nothing confines the job and CUDA
    follows the PCI bus, or if the site says so.
    """
    table, numbers = seen.table, seen.site.cuda_numbers
    names = [word for word in words if not _is_number(word)]
    if names:
        return _translated(source, names, table.named)
    if numbers == "minor":
        return _translated(source, words, lambda word: table.at_minor(int(word), "nvidia"))
    free = pci_order and not table.partitioned and _unconfined(holder)
    if numbers == "index" or free or _all_of(words, table, "nvidia"):
        return _translated(source, words, lambda word: table.at_index(int(word), "nvidia"))
    return None


def _all_of(words: Sequence[str], table: GpuTable, vendor: Vendor) -> bool:
    """Whether these are the numbers 0 to n-1 and the node has exactly n whole GPUs."""
    gpus = [gpu for gpu in table.gpus if gpu.vendor == vendor]
    whole = table.complete and not any(gpu.partitioned for gpu in gpus)
    return (
        whole and bool(gpus) and {int(w) for w in words if _is_number(w)} == set(range(len(gpus)))
    )


def _unconfined(holder: JobHolder) -> bool:
    """Whether a v1 devices cgroup allows the job to open everything."""
    if not registry.node_side(holder.name.manager).lists_devices:
        return False
    return any(
        any(line.startswith("a *:* ") for line in lines_of(os.path.join(directory, "devices.list")))
        for directory in holder.directories
    )


def _is_number(word: str) -> bool:
    return len(word) <= 5 and word.isascii() and word.isdigit()


def _translated(
    source: str, words: Iterable[str], units: Callable[[str], tuple[Unit, ...]]
) -> Allocation | None:
    found = {word: units(word) for word in words}
    if not found:
        return None
    return Allocation(
        source,
        frozenset(unit for each in found.values() for unit in each),
        tuple(word for word, each in found.items() if not each),
    )


SOURCES: tuple[Callable[[JobHolder, AllocationContext], Allocation | None], ...] = (
    _from_prolog,
    _from_scheduler_files,
    _from_devices,
    _from_scheduler_variables,
    _from_cuda,
    _from_rocr,
)
