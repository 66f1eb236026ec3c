"""The GPU vendors, and the interface of a vendor's module: a class named `VENDOR`.

A module is imported when the GPU collector is built. It reads its GPUs in threads of its own, since
any of them may hang.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from collectors.gpu.busy import BusyCounter
from collectors.gpu.devices import Gpu
from collectors.gpu.reading import GpuProcess, KnownGpu
from collectors.host import Host

VENDORS: Mapping[str, str] = {"nvidia": "collectors.gpu.nvidia", "amd": "collectors.gpu.amd"}
"""Module by the label `vendor`."""


class GpuVendor(Protocol):
    """All GPUs of one vendor on this node; what has a default here, not every vendor has."""

    visible_devices: str  # the environment variable by which a process sees only some GPUs
    version: str = ""  # of the driver; "" if unknown
    on_new_process: Callable[[], None]  # called from any thread
    busy_counters: Mapping[str, BusyCounter] = {}  # by UUID
    profiles: Mapping[tuple[str, str], Mapping[str, float]] = {}  # sums by UUID and GPU instance

    def start(self) -> None:
        """Look for GPUs and begin to read them."""

    def stop(self) -> None:
        """End the threads."""

    def list_now(self) -> tuple[Sequence[Gpu], int]:
        """The GPUs that answer, and how many the driver counts; without threads, so it may hang."""

    def known_gpus(self) -> Sequence[KnownGpu]:
        """The GPUs and the last reading of each. Thread-safe."""

    @property
    def complete(self) -> bool:
        """Whether every GPU that the driver counts is known."""
        return True

    def busy_counter(self, uuid: str) -> BusyCounter:
        """The busy seconds of a GPU, from 0 or from where they were restored."""
        del uuid  # without samples there is nothing to count
        return BusyCounter()

    def process_changes(self) -> Sequence[tuple[str, tuple[GpuProcess, ...]]]:
        """The UUID and all processes of a GPU for each change since the last call, in order."""
        return ()

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Failed calls by GPU index ("": the driver itself) and the driver's name for the error."""
        return {}


def vendors(host: Host, interval: float) -> dict[str, GpuVendor]:
    """The GPUs of every vendor on this node, to be read every `interval` seconds."""
    return {
        name: cast(GpuVendor, importlib.import_module(module).VENDOR(host, interval))
        for name, module in VENDORS.items()
    }
