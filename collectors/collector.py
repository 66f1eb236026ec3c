"""What a collector is, and which ones there are.

A collector's module is cheap to import and has three names: `Options` (a frozen dataclass from
which flags, YAML keys and docs are made), `METRICS` (every family it may ever return) and
`build()`. Libraries that only it needs are imported by `build()`.
"""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

from collectors.host import Host
from collectors.metric import Family, Metric


class Collector(Protocol):
    """One source of families, with the threads it needs."""

    def start(self) -> None:
        """Start background threads; called once, before the first `collect()`."""

    def stop(self) -> None:
        """End the threads and close what is open; safe to call twice."""

    def collect(self) -> list[Family]:
        """The families of this moment. Called from one thread at a time."""


class Module(Protocol):
    """What a collector's module offers."""

    Options: type[Any]
    METRICS: tuple[Metric, ...]

    def build(self, host: Host, options: Any, built: Mapping[str, Collector]) -> Collector:
        """Make the collector; `built` holds those that stand before it in `COLLECTORS`."""


class Entry(NamedTuple):
    """A row of the table: the collector's flag, its module, and whether it is on by default."""

    name: str
    module: str
    enabled: bool
    description: str

    def load(self) -> Module:
        """Import the module."""
        return cast("Module", importlib.import_module(self.module))


# In the order in which they are built: a collector may use those above it.
COLLECTORS: tuple[Entry, ...] = (
    Entry("node", "collectors.node", True, "CPU time, memory and boot time of the node."),
    Entry("jobs", "collectors.jobs.collector", True, "What each batch job of the node uses."),
    Entry("rapl", "collectors.rapl", True, "Energy and power limits of the processors (RAPL)."),
    Entry("hwmon", "collectors.hwmon", True, "Power and energy sensors of the kernel."),
    Entry("cray", "collectors.cray", True, "Power and energy of HPE Cray nodes."),
    Entry(
        "redfish",
        "collectors.redfish.collector",
        False,
        "Power that the management controller shows over Redfish.",
    ),
    Entry("ipmi", "collectors.ipmi.collector", True, "Power of the node as its BMC measures it."),
    Entry("gpu", "collectors.gpu.collector", True, "GPUs, and the jobs that hold them."),
    Entry(
        "emissions",
        "collectors.emissions.collector",
        False,
        "Emission factors of the electricity, from tables or live providers.",
    ),
    Entry("energy", "collectors.energy.collector", True, "Energy and emissions of each batch job."),
    Entry(
        "cluster",
        "collectors.cluster.collector",
        False,
        "Nodes, queues and controller of the whole cluster; for one host per cluster.",
    ),
)
