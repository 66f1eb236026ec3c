"""The interface of collectors, and the table of all collectors.

A collector's module is cheap to import and defines `COLLECTOR`; `build()` imports its libraries.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from batchjob.runtime.background import PeriodicTask
from collectors.host import Host
from collectors.metric import Metric, MetricFamily


class Collector(ABC):
    """One source of families, with the threads it needs; some have none."""

    threads: Sequence[PeriodicTask] = ()
    node_names: Callable[[], Sequence[str] | None] | None = None
    """Lists the nodes of a cluster that can be scraped now; None while they are not known."""

    def start(self) -> None:
        """Start the threads; called once, before the first `collect()`."""
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads and close what is open; safe to call twice."""
        for thread in self.threads:
            thread.stop()

    def wait(self, seconds: float) -> None:  # noqa: B027 (most have values at once)
        """Return when the first values are available, after `seconds` at the latest."""

    @abstractmethod
    def collect(self) -> list[MetricFamily]:
        """The current families. Called from one thread at a time."""


@dataclass(frozen=True)
class NoOptions:
    """Of a collector that has none."""


class CollectorModule(NamedTuple):
    """What the module of a collector defines, as `COLLECTOR`."""

    options: type[Any]  # a frozen dataclass from which flags, YAML keys and docs are derived
    metrics: tuple[Metric, ...]  # every family that it can return
    build: Callable[[Host, Any, Mapping[str, Collector]], Collector]
    """Makes the collector from its options and from those before it in `COLLECTORS`."""


class CollectorEntry(NamedTuple):
    """A row of the table: the collector's flag and module, and whether it is enabled by default."""

    name: str
    module: str
    enabled: bool
    description: str

    def load(self) -> CollectorModule:
        return cast(CollectorModule, importlib.import_module(self.module).COLLECTOR)


# In build order: a collector may use the collectors above it.
# fmt: off
COLLECTORS: tuple[CollectorEntry, ...] = (
    CollectorEntry("node", "collectors.node", True, "CPU time, memory and boot time of the node."),
    CollectorEntry("jobs", "collectors.jobs.collector", True,
        "Resource usage of each batch job on the node."),
    CollectorEntry("rapl", "collectors.power.rapl", True,
        "Energy of the processors (RAPL)."),
    CollectorEntry("hwmon", "collectors.power.hwmon", True, "Power and energy sensors from hwmon."),
    CollectorEntry("cray", "collectors.power.cray", True, "Power and energy of HPE Cray nodes."),
    CollectorEntry("redfish", "collectors.power.redfish.collector", False,
        "Power from the management controller (Redfish)."),
    CollectorEntry("ipmi", "collectors.power.ipmi.collector", True,
        "Power of the node from its BMC (IPMI)."),
    CollectorEntry("gpu", "collectors.gpu.collector", True,
        "GPUs and the jobs they are allocated to."),
    CollectorEntry("emissions", "collectors.emissions.collector", False,
        "Emission factors of electricity, from tables or live providers."),
    CollectorEntry("energy", "collectors.energy.collector", True,
        "Energy and emissions of each batch job."),
    CollectorEntry("cluster", "collectors.cluster.collector", False,
        "Nodes, queues and controller of the whole cluster; for one host per cluster."),
)
# fmt: on
