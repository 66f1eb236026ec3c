"""Exposes the cluster's state as its scheduler reports it; a thread reads each part.

Meant for one host per cluster. A part that fails or hangs does not affect the others; its last
reading is exposed until it is too old.
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from batchjob.runtime.background import Refresher, validity_seconds
from batchjob.runtime.json_reader import noting_repeated_names
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.cluster import ClusterJob, ClusterNode, ClusterOptions, ClusterReaders
from batchjob.schedulers.registry import CLUSTERS, Scheduler
from collectors.cluster import changes
from collectors.cluster.job_metrics import JobsReading
from collectors.cluster.metrics import AGE, DAMAGED, ERRORS, INFO, METRICS, families
from collectors.cluster.node_metrics import NodesReading
from collectors.collector import Collector, CollectorModule
from collectors.host import Host
from collectors.metric import MetricFamily, labelled_family

log = logging.getLogger(__name__)

__all__ = ["METRICS", "ClusterOptions", "find_readers"]


class Cluster(Collector):
    """Reads the parts of a cluster's state and exposes the last reading of each."""

    def __init__(
        self, host: Host, scheduler: str, cluster_readers: ClusterReaders, options: ClusterOptions
    ) -> None:
        self._host = host
        self._scheduler = scheduler
        self._options = options
        self._log_once = LogOnce(log)
        self._waits, self._failures = changes.WaitDurations(), changes.NodeFailures()
        self._unavailable = changes.ConditionDurations(changes.is_unavailable)
        self._draining = changes.ConditionDurations(changes.is_draining)
        self._validity_seconds = validity_seconds(options.interval, options.timeout)
        self._gpu_time = changes.GpuTime(self._validity_seconds)
        self._observers: dict[str, Callable[[Any], Any]] = {
            "nodes": self._observe_nodes,
            "jobs": self._observe_jobs,
        }
        readers = {
            part: read for part, read in cluster_readers._asdict().items() if read is not None
        }
        self._damaged = dict.fromkeys(readers, 0)  # in the last reading of each part
        self._parts: dict[str, Refresher[Any]] = {
            part: Refresher(
                f"cluster {part}",
                partial(self._read_part, part, read),
                options.interval,
                self._validity_seconds,
                host.monotonic,
            )
            for part, read in readers.items()
            if part not in options.without
        }
        self.threads = tuple(self._parts.values())

    def refresh(self) -> None:
        for refresher in self._parts.values():
            refresher.refresh()

    def collect(self) -> list[MetricFamily]:
        result = [
            labelled_family(INFO, {self._scheduler: 1}),
            labelled_family(ERRORS, {name: part.failures for name, part in self._parts.items()}),
            labelled_family(DAMAGED, self._damaged),
        ]
        for name, part in self._parts.items():
            observed = part.latest()
            if observed is not None:
                result.append(labelled_family(AGE, {name: self._host.monotonic() - observed.at}))
                result += families(name, observed.value, self._options.users)
        return result

    def node_names(self) -> list[str] | None:
        """The nodes that can be scraped, without those that are powered down."""
        part = self._parts.get("nodes")
        observed = part.latest() if part else None
        if observed is None:
            return None
        return sorted(node.name for node in observed.value.nodes if node.is_powered)

    def _read_part(self, part: str, read: Callable[[], Any]) -> Any:
        with noting_repeated_names() as names:
            reading = read()
        self._damaged[part] = len(names)
        if names:
            self._log_once.warning(part, "cluster %s: %.80r stands twice", part, names[0])
        observe = self._observers.get(part)
        return observe(reading) if observe else reading

    def _observe_nodes(self, read_nodes: Sequence[ClusterNode]) -> NodesReading:
        nodes, now = self._failures.observe(read_nodes), self._host.clock()
        return NodesReading(
            nodes,
            self._unavailable.observe(nodes, now),
            self._draining.observe(nodes, now),
            self._gpu_time.observe(nodes, self._host.monotonic()),
        )

    def _observe_jobs(self, jobs: Sequence[ClusterJob]) -> JobsReading:
        return JobsReading(jobs, self._waits.observe(jobs), self._host.clock())


def find_readers(options: ClusterOptions) -> tuple[str, ClusterReaders]:
    """The scheduler's name and its readers; raises SettingsError if none is found."""
    scheduler = _choose_scheduler(options)
    return scheduler.name, scheduler.load_cluster_module().readers(options)


def _choose_scheduler(options: ClusterOptions) -> Scheduler:
    for scheduler in CLUSTERS.values():
        if scheduler.address_option and getattr(options, scheduler.address_option):
            return scheduler
    if options.scheduler != "auto":
        return CLUSTERS[options.scheduler]
    installed = [each for each in CLUSTERS.values() if shutil.which(each.command)]
    if len(installed) > 1:  # the first that answers; commands of another may only be installed
        answering = (each for each in installed if each.load_cluster_module().detect())
        return next(answering, installed[0])
    if installed:
        return installed[0]
    commands = ", ".join(scheduler.command for scheduler in CLUSTERS.values())
    raise SettingsError(
        f"collector.cluster.scheduler: none of the commands {commands} is in PATH; "
        "expected the scheduler's name, or collector.cluster.slurmrestd-url"
    )


COLLECTOR = CollectorModule(
    ClusterOptions, METRICS, lambda host, options, _: Cluster(host, *find_readers(options), options)
)
