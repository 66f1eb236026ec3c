"""The cluster's state as its scheduler reports it, each part read in a thread of its own.

Meant for one host per cluster. A part that fails or hangs does not affect the others; its last
reading is exposed until it is too old.
"""

import shutil
from collections.abc import Mapping
from typing import Any

from batchjob.runtime.background import Refresher, lifetime
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.cluster import ClusterOptions, ClusterReaders
from batchjob.schedulers.registry import CLUSTERS, Scheduler
from collectors.cluster.changes import (
    ConditionDurations,
    NodeFailures,
    WaitDurations,
    draining,
    unavailable,
)
from collectors.cluster.gpu_seconds import GpuTime
from collectors.cluster.job_metrics import JobsReading
from collectors.cluster.metrics import AGE, ERRORS, INFO, METRICS, families
from collectors.cluster.node_metrics import Nodes
from collectors.collector import Collector, CollectorModule
from collectors.host import Host
from collectors.metric import MetricFamily, labels

__all__ = ["METRICS", "ClusterOptions", "build", "ways"]


class Cluster:
    """The last reading of each part."""

    def __init__(
        self, host: Host, scheduler: str, sources: ClusterReaders, options: ClusterOptions
    ) -> None:
        self._host = host
        self._scheduler = scheduler
        self._options = options
        self._waits, self._failures = WaitDurations(), NodeFailures()
        self._unavailable, self._draining = (
            ConditionDurations(unavailable),
            ConditionDurations(draining),
        )
        self._lifetime = lifetime(options.interval, options.timeout)
        self._gpu_time = GpuTime(self._lifetime)
        reads = {part: read for part, read in sources._asdict().items() if read is not None}
        if "nodes" in reads:
            self._read_nodes = reads["nodes"]
            reads["nodes"] = self._nodes
        if "jobs" in reads:
            self._read_jobs = reads["jobs"]
            reads["jobs"] = self._jobs
        self._parts: dict[str, Refresher[Any]] = {
            part: Refresher(
                f"cluster {part}",
                read,
                options.interval,
                self._lifetime,
                host.monotonic,
            )
            for part, read in reads.items()
            if part not in options.without
        }

    def start(self) -> None:
        """Start reading."""
        for refresher in self._parts.values():
            refresher.start()

    def stop(self) -> None:
        """Stop the threads."""
        for refresher in self._parts.values():
            refresher.stop()

    def refresh(self) -> None:
        """Read every part once, now."""
        for refresher in self._parts.values():
            refresher.refresh()

    def collect(self) -> list[MetricFamily]:
        """The last reading of each part, with its age."""
        found = [
            MetricFamily(INFO, [(labels(scheduler=self._scheduler), 1.0)]),
            MetricFamily(
                ERRORS,
                [(labels(part=name), float(part.failures)) for name, part in self._parts.items()],
            ),
        ]
        for name, part in self._parts.items():
            seen = part.latest()
            if seen is not None:
                found.append(
                    MetricFamily(AGE, [(labels(part=name), self._host.monotonic() - seen.at)])
                )
                found += families(name, seen.value, self._options.native, self._options.users)
        return found

    def node_names(self) -> list[str] | None:
        """The nodes that can be scraped, without those that are powered down."""
        part = self._parts.get("nodes")
        seen = part.latest() if part else None
        if seen is None:
            return None
        return sorted(node.name for node in seen.value.nodes if node.powered)

    def _nodes(self) -> Nodes:
        nodes, now = self._failures.observe(self._read_nodes()), self._host.clock()
        return Nodes(
            nodes, self._unavailable.observe(nodes, now), self._draining.observe(nodes, now),
            self._gpu_time.observe(nodes, self._host.monotonic()),
        )  # fmt: skip

    def _jobs(self) -> JobsReading:
        jobs = self._read_jobs()
        return JobsReading(jobs, self._waits.observe(jobs), self._host.clock())


def ways(options: ClusterOptions) -> tuple[str, ClusterReaders]:
    """The scheduler's name and its queries; raises SettingsError if none is found."""
    scheduler = _asked(options)
    return scheduler.name, scheduler.cluster_module().readers(options)


def build(host: Host, options: ClusterOptions, _built: Mapping[str, Collector]) -> Collector:
    """Build the collector; raises SettingsError if no scheduler is found."""
    return Cluster(host, *ways(options), options)


def _asked(options: ClusterOptions) -> Scheduler:
    for scheduler in CLUSTERS.values():
        if scheduler.address and getattr(options, scheduler.address):
            return scheduler
    if options.scheduler != "auto":
        return CLUSTERS[options.scheduler]
    for scheduler in CLUSTERS.values():
        if shutil.which(scheduler.command):
            return scheduler
    commands = ", ".join(scheduler.command for scheduler in CLUSTERS.values())
    raise SettingsError(
        f"collector.cluster.scheduler: none of the commands {commands} is in PATH; "
        "expected the scheduler's name, or collector.cluster.slurmrestd-url"
    )


COLLECTOR = CollectorModule(ClusterOptions, METRICS, build)
