"""Which vendors' GPUs are read, and what a vendor's module offers: a class under the name `VENDOR`.

A module is loaded where the GPU collector is built. It reads its GPUs by threads of its own, for
any of them may hang.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from collectors.gpu.reading import KnownGpu
from collectors.host import Host

VENDORS: Mapping[str, str] = {
    "nvidia": "collectors.gpu.nvidia.driver",
    "amd": "collectors.gpu.amd",
}
"""Module by the label `vendor`."""


class GpuVendor(Protocol):
    """All GPUs of one vendor on this node."""

    version: str  # of the driver; "" where it does not say or does not answer

    def start(self) -> None:
        """Look for GPUs and begin to read them."""

    def stop(self) -> None:
        """End the threads."""

    def known(self) -> Sequence[KnownGpu]:
        """The GPUs and what each said last. Thread-safe."""

    @property
    def complete(self) -> bool:
        """Whether every GPU that the driver counts is known."""

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Failed calls by GPU index ("": the driver itself) and the driver's word for the error."""


def vendors(host: Host, interval: float) -> dict[str, GpuVendor]:
    """Every vendor's GPUs of this node, not read yet; `interval` seconds apart they will be."""
    return {
        name: cast(GpuVendor, importlib.import_module(module).VENDOR(host, interval))
        for name, module in VENDORS.items()
    }
