"""The GPUs allocated to a job, from all available sources, the most trustworthy first.

Files that root wrote and the devices cgroup precede the environment, which belongs to the user.
Numbers are used only if it is certain what they refer to.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from batchjob.schedulers import registry
from batchjob.schedulers.node import GpuNames, read_lines, split_gpu_list
from collectors.gpu.devices import GpuTable, Unit, Vendor, read_device_majors
from collectors.host import Host, read_text
from collectors.jobs.view import JobHolder, JobName
from collectors.kernel.client import Cgroup, HelperClient
from collectors.kernel.devices import Device

NVIDIA_MAJOR = 195  # Linux, Documentation/admin-guide/devices.txt; minors 254 and 255 are not GPUs

_FRESH_SECONDS = 60.0  # a scheduler replaces the program of a job that it resizes
_RETRY_SECONDS = 5.0  # and attaches it after it has made the job's directory


class AllottedDevices:
    """Asks the helper once for each new job, and again after a while."""

    def __init__(self, host: Host) -> None:
        self._host, self._client = host, HelperClient(host)
        # A later run of the job has the same directory, but not its inode numbers.
        self._known: dict[Cgroup, tuple[float, list[Device] | None]] = {}

    def of_jobs(
        self, holders: Sequence[JobHolder], table: GpuTable, capability_major: int | None
    ) -> Mapping[JobName, frozenset[Device]]:
        """The character devices of GPUs that each job has; jobs of which that is not known lack."""
        gpus = [(NVIDIA_MAJOR, gpu.minor) for gpu in table.gpus if gpu.vendor == "nvidia"]
        devices = [(major, minor) for major, minor in gpus if minor is not None]
        if capability_major is not None:
            devices += [(capability_major, minor) for minor in table.capabilities]
        now = self._host.monotonic()
        self._known = {cgroup: known for cgroup, known in self._known.items() if known[0] > now}
        found = {}
        for holder in holders if devices else ():
            answers = [self._ask(each, devices, now) for each in _cgroups_v2(holder)]
            if answers and None not in answers:
                found[holder.name] = frozenset(each for some in answers for each in some or ())
        return found

    def _ask(self, cgroup: Cgroup, devices: list[Device], now: float) -> list[Device] | None:
        if cgroup not in self._known:
            answer = self._client.allotted_devices(cgroup[0], devices)
            lasts = _RETRY_SECONDS if answer is None else _FRESH_SECONDS
            self._known[cgroup] = now + lasts, answer
        return self._known[cgroup][1]


def _cgroups_v2(holder: JobHolder) -> Iterator[Cgroup]:
    for path in holder.directories:
        with suppress(OSError):  # v1, or removed
            yield path, os.stat(f"{path}/cgroup.controllers").st_ino


class Allocation(NamedTuple):
    """The GPUs of a job by one source; `unknown` are names that match no GPU of this node."""

    source: str
    units: frozenset[Unit]
    unknown: tuple[str, ...] = ()
    trusted: bool = False  # stated by root or the kernel, not by the user's environment


class AllocationContext(NamedTuple):
    """The state of the node that is read once for all jobs, and what the options say of it."""

    table: GpuTable
    prolog_files: Mapping[str, frozenset[str]]  # job id → names of files
    capability_major: int | None  # of /dev/nvidia-caps/*
    hostname: str
    slurm_numbers: str = "index"  # or "minor"
    pbs_homes: tuple[str, ...] = ()
    # Of the jobs whose device programs say it; see `AllottedDevices`.
    allotted: Mapping[JobName, frozenset[Device]] = MappingProxyType({})
    cgroupfs: str = "/sys/fs/cgroup"


def read_context(
    host: Host, table: GpuTable, prolog_files: Mapping[str, frozenset[str]]
) -> AllocationContext:
    """Read what does not depend on a job."""
    hostname = read_text(f"{host.procfs}/sys/kernel/hostname").partition(".")[0]
    major = read_device_majors(host).get("nvidia-caps")
    return AllocationContext(table, prolog_files, major, hostname, cgroupfs=host.cgroupfs)


def allocations(holder: JobHolder, context: AllocationContext) -> list[Allocation]:
    """The allocation of the job by each source that names GPUs, the most trustworthy first.

    If the kernel enforces the job's devices, its environment says nothing about them.
    """
    is_enforced = holder.name in context.allotted
    return [
        stated._replace(trusted=is_trusted)
        for source, is_trusted in SOURCES
        if (is_trusted or not is_enforced) and (stated := source(holder, context))
        if stated.units or stated.unknown
    ]


def _from_prolog(holder: JobHolder, context: AllocationContext) -> Allocation | None:
    names = context.prolog_files.get(holder.name.jobid, frozenset())
    return _resolve("prolog", sorted(names), lambda name: _units_of_job_file(context.table, name))


def _units_of_job_file(table: GpuTable, name: str) -> tuple[Unit, ...]:
    gpu, _, instance = name.partition(".")
    if not _is_number(gpu):
        return table.by_name(name)
    if instance:
        return table.by_gpu_instance(int(gpu), int(instance))
    return table.by_index(int(gpu), "nvidia")


def _from_scheduler_files(holder: JobHolder, context: AllocationContext) -> Allocation | None:
    """Files that the scheduler's daemon has written as root."""
    gpus_from_files = registry.job_manager(holder.name.manager).gpus_from_files
    if gpus_from_files is None:
        return None
    names = gpus_from_files(context.pbs_homes, holder.name.jobid, context.hostname)
    return _resolve_names(names, holder, context) if names else None


def _resolve_names(
    names: GpuNames, holder: JobHolder, context: AllocationContext
) -> Allocation | None:
    table, words = context.table, names.names
    match names.numbering:
        case "visible":
            return _resolve_visible(names.source, words, names.pci_order, holder, context)
        case "listed":
            return _resolve(names.source, words, lambda word: _units_at_position(context, word))
        case "index":
            return _resolve(names.source, words, lambda word: table.by_index(int(word), "nvidia"))
        case "minor":
            return _resolve(names.source, words, lambda word: _units_by_minor_or_name(table, word))


def _from_devices(holder: JobHolder, context: AllocationContext) -> Allocation | None:
    """The devices that the cgroup's device program, or on v1 the devices cgroup, allows."""
    table = context.table
    devices = context.allotted.get(holder.name)
    if devices is None:
        devices = _devices_of_v1(holder)
    units: set[Unit] = set()
    for major, minor in devices:
        if major == context.capability_major:
            units.update(table.by_capability(minor))
    for major, minor in devices:
        if major == NVIDIA_MAJOR and minor < 254:
            gpus = table.by_minor(minor, "nvidia")
            # The device of a GPU in MIG mode is shared by its instances; the capabilities state
            # which of them are allowed.
            units.update(unit for unit in gpus if not unit.gpu.partitioned)
    return Allocation("devices", frozenset(units)) if units else None


def _devices_of_v1(holder: JobHolder) -> frozenset[Device]:
    if not registry.job_manager(holder.name.manager).lists_devices:
        return frozenset()
    paths = (os.path.join(directory, "devices.list") for directory in holder.directories)
    return frozenset(device for path in paths for device in _read_allowed_devices(path) or ())


_DEVICE = re.compile(r"c (\d+):(\d+) [rwm]+")


def _read_allowed_devices(path: str) -> set[tuple[int, int]] | None:
    """Character devices by number; None if everything is allowed or the list cannot be read."""
    lines = read_lines(path)
    if not lines or any(line.startswith("a ") for line in lines):
        return None
    found = (_DEVICE.fullmatch(line) for line in lines)
    return {(int(match[1]), int(match[2])) for match in found if match}


def _from_scheduler_variables(holder: JobHolder, context: AllocationContext) -> Allocation | None:
    """Variables set by the scheduler; the first one that names GPUs is used."""
    gpus_from_variables = registry.job_manager(holder.name.manager).gpus_from_variables
    for names in gpus_from_variables(holder.environs) if gpus_from_variables else ():
        if names.names and (names.numbering != "listed" or _are_positions_reliable(context)):
            return _resolve_names(names, holder, context)
    return None


def _are_positions_reliable(context: AllocationContext) -> bool:
    """False with MIG instances or a second vendor: the scheduler's list has them as well.

    Partitions of AMD GPUs are in the list in the order of their numbers.
    """
    table = context.table
    return table.has_one_vendor and not table.partitioned


def _units_at_position(context: AllocationContext, word: str) -> tuple[Unit, ...]:
    if not _is_number(word):
        return context.table.by_name(word)
    number = int(word)
    if context.slurm_numbers == "minor":
        return context.table.by_minor(number)
    return context.table.by_index(number)


def _units_by_minor_or_name(table: GpuTable, word: str) -> tuple[Unit, ...]:
    return table.by_minor(int(word), "nvidia") if _is_number(word) else table.by_name(word)


def _from_cuda(holder: JobHolder, context: AllocationContext) -> Allocation | None:
    """LSF also sets CUDA_VISIBLE_DEVICES<n> for task n; the job has the GPUs of all its tasks."""
    environs = holder.environs
    words = [
        word
        for environ in environs
        for name in sorted(environ)
        if _CUDA.fullmatch(name)
        for word in split_gpu_list(environ[name])
    ]
    pci_order = all(environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" for environ in environs)
    return _resolve_visible("CUDA_VISIBLE_DEVICES", words, pci_order, holder, context)


_CUDA = re.compile(r"CUDA_VISIBLE_DEVICES\d*")


def _from_rocr(holder: JobHolder, context: AllocationContext) -> Allocation | None:
    """Like CUDA_VISIBLE_DEVICES, for ROCm: `GPU-<unique id in hex>` or numbers."""
    source, table = "ROCR_VISIBLE_DEVICES", context.table
    words = [word for environ in holder.environs for word in split_gpu_list(environ.get(source))]
    names = [word for word in words if not _is_number(word)]
    if names:
        return _resolve(source, names, table.by_name)
    if _are_all_gpus(words, table, "amd"):
        return _resolve(source, words, lambda word: table.by_index(int(word), "amd"))
    return None


def _resolve_visible(
    source: str,
    words: Sequence[str],
    pci_order: bool,
    holder: JobHolder,
    context: AllocationContext,
) -> Allocation | None:
    """CUDA_VISIBLE_DEVICES: names are unambiguous, but numbers count the GPUs visible to the job.

    Numbers are reliable if they name all GPUs of the node, or if the job may open every device and
    CUDA follows the PCI order.
    """
    table = context.table
    names = [word for word in words if not _is_number(word)]
    if names:
        return _resolve(source, names, table.by_name)
    sees_all_gpus = pci_order and not table.partitioned and _is_unconfined(holder)
    if sees_all_gpus or _are_all_gpus(words, table, "nvidia"):
        return _resolve(source, words, lambda word: table.by_index(int(word), "nvidia"))
    return None


def _are_all_gpus(words: Sequence[str], table: GpuTable, vendor: Vendor) -> bool:
    """Whether these are the numbers 0 to n-1 and the node has exactly n whole GPUs."""
    gpus = [gpu for gpu in table.gpus if gpu.vendor == vendor]
    are_whole = table.complete and not any(gpu.partitioned for gpu in gpus)
    numbers = {int(word) for word in words if _is_number(word)}
    return are_whole and bool(gpus) and numbers == set(range(len(gpus)))


def _is_unconfined(holder: JobHolder) -> bool:
    """Whether a v1 devices cgroup allows the job to open everything."""
    if not registry.job_manager(holder.name.manager).lists_devices:
        return False
    return any(
        line.startswith("a *:* ")
        for directory in holder.directories
        for line in read_lines(os.path.join(directory, "devices.list"))
    )


def _is_number(word: str) -> bool:
    return len(word) <= 5 and word.isascii() and word.isdigit()


def _resolve(
    source: str, words: Iterable[str], find_units: Callable[[str], tuple[Unit, ...]]
) -> Allocation | None:
    units_by_word = {word: find_units(word) for word in words}
    if not units_by_word:
        return None
    return Allocation(
        source,
        frozenset(unit for each in units_by_word.values() for unit in each),
        tuple(word for word, each in units_by_word.items() if not each),
    )


_Source = Callable[[JobHolder, AllocationContext], Allocation | None]
SOURCES: tuple[tuple[_Source, bool], ...] = (
    (_from_devices, True),
    (_from_prolog, True),
    (_from_scheduler_files, True),
    (_from_scheduler_variables, False),
    (_from_cuda, False),
    (_from_rocr, False),
)
"""The sources, and whether root or the kernel states what they say."""
