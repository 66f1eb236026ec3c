"""AMD GPUs through sysfs: the amdgpu driver's files, without ROCm.

Sources: Linux, Documentation/gpu/amdgpu (driver-misc: gpu_busy_percent, mem_info_*, unique_id;
thermal: hwmon) and drivers/gpu/drm/amd/amdkfd (kfd/proc/<pid>/vram_<gpu id>). A file that a board
lacks, or that cannot be read, is an absent value.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from batchjob.runtime.background import Refresher
from collectors.gpu import metrics
from collectors.gpu.devices import Gpu, Instance
from collectors.gpu.reading import EnergyCounter, GpuProcess, GpuReading, KnownGpu, max_reading_age
from collectors.gpu.vendor import GpuVendor
from collectors.host import Host, list_directory, read_text

_AMD_VENDOR_ID = "0x1002"  # PCI vendor id


class Card(NamedTuple):
    """An amdgpu device: its directory under /sys/devices and its PCI address (0000:c1:00.0)."""

    directory: str
    address: str
    partitions: int = 1


def find_cards(host: Host) -> list[Card]:
    """The amdgpu devices in PCI order, as ROCm numbers them.

    The driver makes a card for each partition of an MI300 but the first, of a platform device
    `amdgpu_xcp_<n>`, with the numbers after that of the GPU (amdgpu_xcp_drv.c).
    """
    drm = os.path.join(host.sysfs, "class/drm")
    numbers = [int(m[1]) for n in list_directory(drm) if (m := re.fullmatch(r"card(\d+)", n))]
    found: dict[str, Card] = {}
    address = ""  # of the card to which the next partitions belong
    for number in sorted(numbers):
        device = os.path.realpath(os.path.join(drm, f"card{number}", "device"))
        driver = os.path.basename(os.path.realpath(os.path.join(device, "driver")))
        if os.path.basename(device).startswith("amdgpu_xcp") and address:
            card = found[address]
            found[address] = card._replace(partitions=card.partitions + 1)
            continue
        address = ""
        if read_text(os.path.join(device, "vendor")) == _AMD_VENDOR_ID and driver == "amdgpu":
            address = os.path.basename(device)
            found[address] = Card(device, address)
    return [found[address] for address in sorted(found)]


def read(host: Host, card: Card, index: int) -> GpuReading:
    """Read one card; raises OSError if it was removed.

    A power of 0 W is no reading: of the two dies of a card with one meter, as of MI250, one has it.
    Use and processes of a partitioned card are not known by partition.
    """
    os.stat(card.directory)
    directory = card.directory
    values: dict[metrics.GpuMetric, float | None] = {
        **_read_sensors(directory),
        **_read_memory_errors(directory),
    }
    if values.get(metrics.POWER) == 0:
        values |= {metrics.POWER: None, metrics.ENERGY: values.get(metrics.ENERGY) or None}
    is_whole = card.partitions == 1
    if is_whole:
        values |= {
            metrics.UTILIZATION: _read_number(os.path.join(directory, "gpu_busy_percent"), 0.01),
            metrics.MEMORY_USED: _read_number(os.path.join(directory, "mem_info_vram_used")),
            metrics.MEMORY_TOTAL: _read_number(os.path.join(directory, "mem_info_vram_total")),
        }
    return GpuReading(
        describe(card, index),
        {quantity: value for quantity, value in values.items() if value is not None},
        {},
        _read_processes(host, card) if is_whole else None,
    )


def describe(card: Card, index: int) -> Gpu:
    """The identity of a card. Boards without a serial number are identified by PCI address."""
    unique = read_text(os.path.join(card.directory, "unique_id"))
    has_unique_id = bool(re.fullmatch(r"[0-9a-f]+", unique)) and int(unique, 16) != 0
    minors = [
        int(name.removeprefix("renderD"))
        for name in list_directory(os.path.join(card.directory, "drm"))
        if re.fullmatch(r"renderD\d+", name)
    ]
    uuid = f"GPU-{unique}" if has_unique_id else card.address
    mode = read_text(os.path.join(card.directory, "current_compute_partition"))
    partitions = range(card.partitions) if card.partitions > 1 else ()
    return Gpu(
        vendor="amd",
        index=index,
        uuid=uuid,
        minor=minors[0] if minors else None,
        pci_bus_id=f"0000{card.address}".upper(),
        name=read_text(os.path.join(card.directory, "product_name")) or "AMD GPU",
        partitioned=card.partitions > 1,
        numbers_partitions=True,
        slices=float(card.partitions),
        instances=tuple(Instance(f"{uuid}/{n}", n, 0, mode, 1.0) for n in partitions),
    )


# hwmon channel label → quantity and factor to its unit.
_QUANTITIES_BY_LABEL = {
    "edge": (metrics.TEMPERATURE, 1e-3),
    "mem": (metrics.MEMORY_TEMPERATURE, 1e-3),
    "sclk": (metrics.CLOCK["graphics"], 1.0),
    "mclk": (metrics.CLOCK["memory"], 1.0),
}


def _read_sensors(directory: str) -> dict[metrics.GpuMetric, float | None]:
    """Power (uW), energy (uJ), temperatures (mC) and clocks (Hz) from the card's hwmon."""
    root = os.path.join(directory, "hwmon")
    for name in list_directory(root):
        hwmon = os.path.join(root, name)
        values = dict(_read_channels(hwmon))
        # MI300 and others have no sensor called edge; the hottest spot is used instead.
        if metrics.TEMPERATURE not in values:
            values[metrics.TEMPERATURE] = _read_number(os.path.join(hwmon, "temp2_input"), 1e-3)
        average = _read_number(os.path.join(hwmon, "power1_average"), 1e-6)
        momentary = _read_number(os.path.join(hwmon, "power1_input"), 1e-6)
        return {
            **values,
            metrics.POWER: average if average is not None else momentary,
            metrics.POWER_LIMIT: _read_number(os.path.join(hwmon, "power1_cap"), 1e-6),
            metrics.ENERGY: _read_number(os.path.join(hwmon, "energy1_input"), 1e-6),
        }
    return {}


def _read_channels(hwmon: str) -> Iterator[tuple[metrics.GpuMetric, float | None]]:
    for name in list_directory(hwmon):
        if name.endswith("_label"):
            quantity, factor = _QUANTITIES_BY_LABEL.get(
                read_text(os.path.join(hwmon, name)), (None, 1.0)
            )
            if quantity is not None:
                path = os.path.join(hwmon, name.removesuffix("_label") + "_input")
                yield quantity, _read_number(path, factor)


def _read_memory_errors(directory: str) -> dict[metrics.GpuMetric, float | None]:
    """`ue: 0` and `ce: 0` of the memory controller (RAS); absent without RAS."""
    counts = dict(
        line.split(": ", 1)
        for line in read_text(os.path.join(directory, "ras/umc_err_count")).splitlines()
        if re.fullmatch(r"(ue|ce): \d+", line)
    )
    kinds = {"ce": metrics.ECC["corrected"], "ue": metrics.ECC["uncorrected"]}
    return {kinds[kind]: float(count) for kind, count in counts.items()}


def _read_processes(host: Host, card: Card) -> tuple[GpuProcess, ...] | None:
    """Processes that have opened the GPU for compute, with their VRAM; None without KFD."""
    root = os.path.join(host.sysfs, "class/kfd/kfd")
    kfd_id = _find_kfd_id(root, card)
    if kfd_id is None or not os.path.isdir(os.path.join(root, "proc")):
        return None
    found = []
    for pid in list_directory(os.path.join(root, "proc")):
        path = os.path.join(root, "proc", pid, f"vram_{kfd_id}")
        if pid.isdigit() and os.path.exists(path):
            found.append(GpuProcess(int(pid), _read_number(path)))
    return tuple(found)


def _find_kfd_id(root: str, card: Card) -> str | None:
    """KFD's id of the card: the topology node with its `domain` and `location_id` (bus, devfn)."""
    domain, bus, slot = card.address.split(":")
    device, function = slot.split(".")
    location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
    nodes = os.path.join(root, "topology/nodes")
    for node in list_directory(nodes):
        pairs = read_text(os.path.join(nodes, node, "properties")).split()
        properties = dict(zip(pairs[::2], pairs[1::2], strict=False))
        if (properties.get("location_id"), properties.get("domain", "0")) == (
            str(location),
            str(int(domain, 16)),
        ):
            kfd_id = read_text(os.path.join(nodes, node, "gpu_id"))
            return kfd_id if kfd_id not in ("", "0") else None
    return None


def _read_number(path: str, factor: float = 1.0) -> float | None:
    text = read_text(path)
    return int(text) * factor if re.fullmatch(r"-?\d+", text) else None


def shared_meters(readings: Sequence[GpuReading]) -> dict[str, str]:
    """The dies without a meter, by UUID, and the dies whose meter is that of their card.

    They are such dies if of each two neighbours in PCI order, which are alike, one has a meter.
    """
    meters = {}
    for pair in zip(readings[::2], readings[1::2], strict=False):
        kinds = {(each.gpu.name, each.values.get(metrics.MEMORY_TOTAL)) for each in pair}
        silent = [
            each
            for each in pair
            if metrics.POWER not in each.values and metrics.ENERGY not in each.values
        ]
        if len(kinds) != 1 or len(silent) != 1:
            return {}
        (metered,) = (each for each in pair if each is not silent[0])
        meters[silent[0].gpu.uuid] = metered.gpu.uuid
    return meters if len(readings) % 2 == 0 else {}


class AmdGpus(GpuVendor):
    """A thread for each amdgpu device: a sleeping or faulty one must not delay the others.

    amdgpu has no version, since it is part of the kernel; processes are listed at readings only,
    and there are no samples of how busy a GPU was.
    """

    visible_devices = "ROCR_VISIBLE_DEVICES"

    def __init__(self, host: Host, interval: float) -> None:
        self._host = host
        self._interval = interval
        self._cards: list[tuple[Gpu, Refresher[GpuReading]]] = []
        self._last_read_at: dict[str, float] = {}
        self._meters: Mapping[str, str] = {}  # UUID of a die without a meter → that of the other

    def start(self) -> None:
        """Find the cards and start reading them; cards cannot be added later."""
        for index, card in enumerate(find_cards(self._host)):
            age = max_reading_age(self._interval)
            counter = EnergyCounter(age)
            read = partial(self._read_card, card, index, counter)
            refresher = Refresher(f"amdgpu{index}", read, self._interval, age, self._host.monotonic)
            self._cards.append((describe(card, index), refresher))
            refresher.start()

    def stop(self) -> None:
        for _, refresher in self._cards:
            refresher.stop()

    def list_now(self) -> tuple[list[Gpu], int]:
        gpus = [describe(card, index) for index, card in enumerate(find_cards(self._host))]
        return gpus, len(gpus)

    def known_gpus(self) -> list[KnownGpu]:
        gpus = [
            KnownGpu(gpu, self._last_read_at.get(gpu.uuid), refresher.latest())
            for gpu, refresher in self._cards
        ]
        readings = [each.observed.value for each in gpus if each.observed]
        if len(readings) == len(gpus):  # otherwise they are as before
            self._meters = shared_meters(readings)
        return [each._replace(meter=self._meters.get(each.gpu.uuid, "")) for each in gpus]

    def _read_card(self, card: Card, index: int, counter: EnergyCounter) -> GpuReading:
        reading = read(self._host, card, index)
        at = self._host.monotonic()
        self._last_read_at[reading.gpu.uuid] = at
        values = counter.drop_implausible_power(reading.values)
        return reading._replace(values=values, energy=counter.update(values, at, session=0))


VENDOR = AmdGpus
