"""The table of the node's GPUs, by every name that schedulers and drivers use.

Three numberings look alike and differ: NVML's index follows the PCI bus, the minor of
/dev/nvidia<minor> follows the order in which the driver found the boards, and CUDA counts what a
process may see. Only the UUID is unambiguous; the rest is translated here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from collectors.host import Host, read_text

Vendor = str  # a key of VENDORS in vendor.py


class Instance(NamedTuple):
    """A MIG device, a compute instance inside a GPU instance; or a partition of an AMD GPU."""

    uuid: str  # MIG-...
    gpu_instance: int
    compute_instance: int
    profile: str  # 1g.10gb
    slices: float  # compute slices; the instances share those of their GPU instance


@dataclass(frozen=True)
class Gpu:
    """One physical GPU. `None`: the driver does not report it."""

    vendor: Vendor
    index: int
    uuid: str
    minor: int | None
    pci_bus_id: str  # 00000000:3B:00.0, as written by NVML and DCGM
    name: str
    partitioned: bool = False  # MIG mode or compute partitions are enabled
    slices: float | None = None  # compute slices of the whole GPU
    instances: tuple[Instance, ...] = ()
    numbers_partitions: bool = False  # the driver numbers each partition as a device


class Unit(NamedTuple):
    """What a job can hold: a whole GPU or a MIG instance of one."""

    gpu: Gpu
    instance: Instance | None = None

    @property
    def gpu_instance(self) -> str:
        """DCGM's GPU_I_ID; `2/1` if a GPU instance has several compute instances."""
        if self.instance is None:
            return ""
        number = self.instance.gpu_instance
        shared = sum(each.gpu_instance == number for each in self.gpu.instances) > 1
        return f"{number}/{self.instance.compute_instance}" if shared else str(number)

    @property
    def fraction(self) -> float:
        """The unit's share of its GPU, in compute slices."""
        if self.instance is None:
            return 1.0
        whole = self.gpu.slices or sum(each.slices for each in self.gpu.instances)
        return min(1.0, self.instance.slices / whole) if whole else 0.0


class GpuTable:
    """The devices of a node; immutable, rebuilt when the set of devices changes."""

    def __init__(
        self,
        gpus: Iterable[Gpu],
        mig_minors: dict[int, tuple[int, int, int | None]] | None = None,
        complete: bool = True,
    ) -> None:
        """`mig_minors`: from `read_mig_minors`; `complete`: the names of all GPUs are known."""
        self.gpus = tuple(sorted(gpus, key=lambda gpu: (gpu.vendor != "nvidia", gpu.index)))
        self.complete = complete
        self._mig_minors = mig_minors or {}
        self._units_by_name: dict[str, tuple[Unit, ...]] = {}
        self._units_by_number: dict[tuple[Vendor, int], tuple[Unit, ...]] = {}
        for gpu in self.gpus:
            units = units_of(gpu)
            self._number_units(gpu, units)
            for name in (gpu.uuid, gpu.pci_bus_id, short_bus_id(gpu.pci_bus_id)):
                self._units_by_name[name.lower()] = units
            for instance in gpu.instances:
                unit = (Unit(gpu, instance),)
                old_name = f"MIG-{gpu.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
                for name in (instance.uuid, old_name):
                    self._units_by_name[name.lower()] = unit

    def _number_units(self, gpu: Gpu, units: tuple[Unit, ...]) -> None:
        if not gpu.numbers_partitions:
            self._units_by_number[gpu.vendor, gpu.index] = units
            return
        first = sum(vendor == gpu.vendor for vendor, _ in self._units_by_number)
        for number, unit in enumerate(units, first):
            self._units_by_number[gpu.vendor, number] = (unit,)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Everything a job can hold."""
        return tuple(unit for gpu in self.gpus for unit in units_of(gpu))

    @property
    def partitioned(self) -> bool:
        """Whether any GPU is in MIG mode; then a scheduler's numbers may refer to instances."""
        return any(gpu.partitioned and not gpu.numbers_partitions for gpu in self.gpus)

    @cached_property
    def capabilities(self) -> tuple[int, ...]:
        """The minor numbers of /dev/nvidia-caps that belong to MIG instances which exist.

        The driver lists those of all instances that 32 GPUs could have, several thousand.
        """
        return tuple(minor for minor in self._mig_minors if self.by_capability(minor))

    @property
    def has_one_vendor(self) -> bool:
        """Whether a number is unambiguous."""
        return len({gpu.vendor for gpu in self.gpus}) <= 1

    def by_name(self, name: str) -> tuple[Unit, ...]:
        """By UUID (whole or a unique prefix, as CUDA accepts it), MIG name or PCI id."""
        wanted = name.strip().lower()
        exact = self._units_by_name.get(wanted)
        if exact is not None:
            return exact
        if not re.fullmatch(r"(gpu|mig)-[0-9a-f-]+", wanted):
            return ()
        matches = {
            units for known, units in self._units_by_name.items() if known.startswith(wanted)
        }
        return matches.pop() if len(matches) == 1 else ()

    def by_index(self, index: int, vendor: Vendor | None = None) -> tuple[Unit, ...]:
        """By NVML's index (AMD: position in PCI order, of partitions where there are any).

        Nothing if it is ambiguous.
        """
        found = [
            units
            for (each, number), units in self._units_by_number.items()
            if number == index and vendor in (None, each)
        ]
        return found[0] if len(found) == 1 else ()

    def by_minor(self, minor: int, vendor: Vendor | None = None) -> tuple[Unit, ...]:
        """By the minor number of its device file; nothing if it is ambiguous.

        Partitions have device files of their own, so that of their GPU is not all of them.
        """
        found = [gpu for gpu in self.gpus if gpu.minor == minor and vendor in (None, gpu.vendor)]
        is_whole = len(found) == 1 and not (found[0].partitioned and found[0].numbers_partitions)
        return units_of(found[0]) if is_whole else ()

    def by_gpu_instance(self, index: int, gpu_instance: int) -> tuple[Unit, ...]:
        return tuple(
            unit
            for unit in self.by_index(index, "nvidia")
            if unit.instance and unit.instance.gpu_instance == gpu_instance
        )

    def by_capability(self, minor: int) -> tuple[Unit, ...]:
        """Units behind the capability device /dev/nvidia-caps/nvidia-cap<minor>."""
        if minor not in self._mig_minors:
            return ()
        board, gpu_instance, compute_instance = self._mig_minors[minor]
        return tuple(
            unit
            for unit in self.by_minor(board, "nvidia")
            if unit.instance
            and unit.instance.gpu_instance == gpu_instance
            and compute_instance in (None, unit.instance.compute_instance)
        )


def units_of(gpu: Gpu) -> tuple[Unit, ...]:
    """A GPU's instances, or the whole GPU if it is not partitioned."""
    return tuple(Unit(gpu, instance) for instance in gpu.instances) or (Unit(gpu),)


def short_bus_id(bus_id: str) -> str:
    """`0000:3b:00.0`, as sysfs and lspci write `00000000:3B:00.0`."""
    domain, _, rest = bus_id.partition(":")
    return f"{domain[-4:]}:{rest}"


_MIG_MINOR = re.compile(r"gpu(\d+)/gi(\d+)/(?:ci(\d+)/)?access (\d+)")


def read_mig_minors(host: Host) -> dict[int, tuple[int, int, int | None]]:
    """Capability minor → (GPU minor, GPU instance, compute instance or None for the GPU instance).

    Source: /proc/driver/nvidia-caps/mig-minors (NVIDIA MIG User Guide, "Device Nodes and
    Capabilities"); empty without it.
    """
    minors = {}
    for line in read_text(f"{host.procfs}/driver/nvidia-caps/mig-minors").splitlines():
        match = _MIG_MINOR.fullmatch(line.strip())
        if match:
            gpu, gpu_instance, compute_instance, minor = match.groups()
            instance_number = None if compute_instance is None else int(compute_instance)
            minors[int(minor)] = (int(gpu), int(gpu_instance), instance_number)
    return minors


def read_device_majors(host: Host) -> dict[str, int]:
    """Name → major number of the character devices in /proc/devices; empty if unreadable."""
    majors: dict[str, int] = {}
    for line in read_text(f"{host.procfs}/devices").splitlines():
        if line.startswith("Block"):
            break
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            majors[name] = int(number)
    return majors
