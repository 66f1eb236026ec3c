"""The current state of a cluster from its exporters: nodes, allocations, fair shares.

No page waits long for it: the last reading is cached, and a thread of its own reads a new one.
"""

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, cast

from batchjob.quantities.gpu import (
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    JOB_GPU_INFO,
)
from batchjob.runtime.log import LogOnce
from batchjob.schedulers.cluster import ClusterNode
from batchjob.schedulers.node_names import short_name, without_port
from batchjob_stats_db.timeseries.base import EXPORTER, SeriesValue, TimeSeriesStore
from batchjob_stats_server.curves import NODE_CURVES
from batchjob_stats_server.turns import Threads, TimeSeriesPool

log = logging.getLogger(__name__)
T = TypeVar("T")

_FRESH_SECONDS = 20
_STALE_SECONDS = 600  # older readings are not shown
_ANSWERING_FRESH_SECONDS = 600
ANSWERING_SECONDS = 86400
"""The time over which `answering_ratios` counts."""
BUSY_SECONDS = 600
"""The time all of which the CPUs of `busy_ratios` were busy."""

NODE = "batchjob_cluster_node_"
ACCOUNT = "batchjob_cluster_account_"
"""How the names of the metrics of a scheduler's nodes and accounts begin."""

_AMOUNT_METRICS = ("cpus", "cpus_allocated", "memory_bytes", "memory_allocated_bytes", "gpus",
            "gpus_allocated")  # fmt: skip
_LABELS = {
    f"{NODE}info": ("state",),
    f"{NODE}flag": ("flag",),
    f"{NODE}unavailable_info": ("reason",),
}  # in addition to `node`
_NAMES = ("info", "flag", "unavailable_info", *_AMOUNT_METRICS)
SHARES = ("shares_ratio", "usage_ratio", "fairshare_level", "fairshare_ratio")
_GPU_METRICS = tuple(
    each.name
    for each in (
        GPU_UTILIZATION, GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_POWER, GPU_TEMPERATURE, JOB_GPU_INFO
    )
)  # fmt: skip
CLUSTER_METRICS = (
    EXPORTER,
    *(NODE + name for name in _NAMES),
    *(ACCOUNT + name for name in SHARES),
)


class NodeState(NamedTuple):
    """A node, as the scheduler reports it; unknown amounts are missing."""

    node: str
    state: str
    flags: tuple[str, ...]
    reason: str
    amounts: Mapping[str, float]

    @property
    def css_class(self) -> str:
        node = ClusterNode(self.node, self.state, frozenset(self.flags), ())
        if not node._replace(flags=frozenset()).is_usable:
            return "down"
        if not node.is_usable:
            return "drained"
        return {"allocated": "full", "mixed": "part", "idle": "free"}.get(self.state, "part")


class ClusterReading(NamedTuple):
    """A cluster at one moment."""

    nodes: Mapping[str, NodeState]
    shares: Mapping[str, Mapping[str, float]]  # account → SHARES → value
    instances: Mapping[str, str]  # node → target, if its exporter answers
    ignored: int = 0  # series that could not be read, or of targets that are not the scheduler's

    def instance(self, node: str) -> str:
        """The target of a node, "" if none answers; the full name may be given."""
        return self.instances.get(node) or self.instances.get(short_name(node), "")

    def totals(self) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for each in self.nodes.values():
            for name, amount in each.amounts.items():
                sums[name] += amount
        return dict(sums)

    def free(self, name: str) -> float | None:
        """What nodes that take jobs have left of `cpus` or `gpus`; None if it is not known."""
        left = [
            max(each.amounts.get(name, 0) - each.amounts[f"{name}_allocated"], 0)
            for each in self.nodes.values()
            if each.css_class in ("free", "part") and f"{name}_allocated" in each.amounts
        ]
        return sum(left) if left or f"{name}_allocated" in self.totals() else None

    def states(self) -> dict[str, int]:
        """The number of nodes by kind of cell, the most usable first."""
        classes = [each.css_class for each in self.nodes.values()]
        return {name: classes.count(name) for name in NODE_STATE_LABELS if name in classes}


NODE_STATE_LABELS = {
    "free": "idle",
    "part": "partly allocated",
    "full": "allocated",
    "drained": "takes no new jobs",
    "down": "down",
}
"""What the colours of nodes mean."""


def reading_from_series(series: Iterable[SeriesValue]) -> ClusterReading:
    """A reading from the last values of the cluster's series.

    Series without an expected label or a finite value are left out and counted, as are those of
    targets that do not speak for the scheduler.
    """
    all_series = list(series)
    values: dict[str, list[SeriesValue]] = defaultdict(list)
    for each in _of_scheduler(all_series):
        if math.isfinite(each.value) and each.labels.keys() >= _expected_labels(each.metric):
            values[each.metric].append(each)
    amounts: dict[str, dict[str, float]] = defaultdict(dict)
    for name in _AMOUNT_METRICS:
        for each in values[NODE + name]:
            amounts[each.labels["node"]][name] = each.value
    flags: dict[str, set[str]] = defaultdict(set)
    for each in values[f"{NODE}flag"]:
        flags[each.labels["node"]].add(each.labels["flag"])
    states, reasons = (
        {each.labels["node"]: each.labels[label] for each in values[NODE + name]}
        for name, label in (("info", "state"), ("unavailable_info", "reason"))
    )
    nodes = {
        node: NodeState(
            node, state, tuple(sorted(flags[node])), reasons.get(node, ""), amounts[node]
        )
        for node, state in sorted(states.items())
    }
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for name in SHARES:
        for each in values[ACCOUNT + name]:
            shares[each.labels["account"]][name] = each.value
    ignored = len(all_series) - sum(map(len, values.values()))
    return ClusterReading(nodes, dict(shares), targets_by_node(values[EXPORTER]), ignored)


def _expected_labels(metric: str) -> set[str]:
    if metric == EXPORTER:
        return set()
    return {"account"} if metric.startswith(ACCOUNT) else {"node", *_LABELS.get(metric, ())}


def _of_scheduler(series: Sequence[SeriesValue]) -> Iterator[SeriesValue]:
    """The exporters' series, and the scheduler's from the targets that speak for it.

    Any node can expose such metrics, but its label `job` comes from the scrape configuration. A
    target of a scrape job that has no compute nodes therefore comes first. Where there is none, a
    single target is believed, as on one machine; of several, none is.
    """
    compute = {each.labels.get("job", "") for each in series if each.metric == EXPORTER}
    claiming = {_target(each) for each in series if each.metric != EXPORTER}
    believed = {target for target in claiming if target[0] not in compute}
    if not believed and len(claiming) == 1:
        believed = claiming
    for each in series:
        if each.metric == EXPORTER or _target(each) in believed:
            yield each


def _target(series: SeriesValue) -> tuple[str, str]:
    return series.labels.get("job", ""), series.labels.get("instance", "")


def targets_by_node(exporters: Sequence[SeriesValue]) -> dict[str, str]:
    """The target of each node, by its full name and by its first label."""
    targets: dict[str, str] = {}
    for each in exporters:
        instance = each.labels.get("instance", "")
        targets |= {short_name(without_port(instance)): instance, without_port(instance): instance}
    return targets


class NodeGpu(NamedTuple):
    """The current state of a GPU, or an instance of one; unknown values are None."""

    gpu: str
    uuid: str
    gpu_instance: str
    utilization: float | None
    memory_bytes: float | None
    memory_total_bytes: float | None
    watts: float | None
    celsius: float | None
    jobids: tuple[str, ...]  # jobs that hold it
    confirmed: bool = True  # by more than the environment of these jobs


def gpus_of(series: Iterable[SeriesValue]) -> list[NodeGpu]:
    """The GPUs of a node from their last values, by their numbers."""
    values: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    jobids: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    claimed: set[tuple[str, str, str]] = set()
    for each in series:
        gpu, uuid, instance = map(each.labels.get, ("gpu", "uuid", "gpu_instance"))
        key = gpu or "", uuid or "", instance or ""
        if each.metric == JOB_GPU_INFO.name:
            jobids[key] |= {each.labels["jobid"]} if "jobid" in each.labels else set()
            if each.labels.get("confirmed") != "true":
                claimed.add(key)
        else:
            values[key][each.metric] = each.value
    return [
        NodeGpu(
            *key,
            values[key].get(GPU_UTILIZATION.name), values[key].get(GPU_MEMORY_USED.name),
            values[key].get(GPU_MEMORY_TOTAL.name), values[key].get(GPU_POWER.name),
            values[key].get(GPU_TEMPERATURE.name), tuple(sorted(jobids[key])),
            key not in claimed,
        )
        for key in sorted(values.keys() | jobids.keys(), key=lambda key: (len(key[0]), key))
    ]  # fmt: skip


class ClusterReadings:
    """Queries in a thread, and caches the last answers."""

    def __init__(self, stores: TimeSeriesPool, threads: Threads) -> None:
        self._stores = stores
        self._answering = threads
        self._log_once = LogOnce(log)
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, str], tuple[float, Any]] = {}  # time and value
        self._pending: dict[tuple[str, str], Future[None]] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="cluster-readings")

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def of(self, cluster: str, now: float) -> ClusterReading | None:
        """None: nothing is known, or not in time."""

        def ask(store: TimeSeriesStore) -> ClusterReading:
            reading = reading_from_series(store.latest(cluster, CLUSTER_METRICS, now))
            if reading.ignored:
                self._log_once.warning(
                    cluster,
                    "cluster %s: %d series of the scheduler's nodes and accounts are ignored, "
                    "because they lack a label or come from a target that is not the scheduler's",
                    cluster,
                    reading.ignored,
                )
            else:
                self._log_once.forget(cluster)
            return reading

        return self._cached_or_read((cluster, "now"), now, _FRESH_SECONDS, ask)

    def gpus(self, cluster: str, instance: str, now: float) -> Sequence[NodeGpu]:
        """The GPUs of a node, by its target; none if nothing is known in time."""
        found = self._cached_or_read(
            (cluster, instance), now, _FRESH_SECONDS,
            lambda store: gpus_of(store.latest(cluster, _GPU_METRICS, now, instance)),
        )  # fmt: skip
        return found or ()

    def answering_ratios(self, cluster: str, now: float) -> Mapping[str, float] | None:
        """By node, the fraction of the last day in which its exporter answered; None: unknown."""

        def ask(store: TimeSeriesStore) -> dict[str, float]:
            ratios = store.scrape_ratios(cluster, EXPORTER, now, ANSWERING_SECONDS)
            return {without_port(each.labels.get("instance", "")): each.value for each in ratios}

        return self._cached_or_read((cluster, "reported"), now, _ANSWERING_FRESH_SECONDS, ask)

    def busy_ratios(self, cluster: str, now: float) -> Mapping[str, float] | None:
        """By node, the fraction of its CPUs that was busy all the last minutes; None: unknown."""

        def ask(store: TimeSeriesStore) -> dict[str, float]:
            span = (int(now) - BUSY_SECONDS, int(now), 2)
            busy, online = (
                {
                    without_port(each.labels.get("instance", "")): min(p.mean for p in each.points)
                    for each in store.node_series(
                        NODE_CURVES[name].query._replace(by=("instance",)), cluster, "", *span
                    )
                    if len(each.points) == 2  # else it did not answer all the time
                }
                for name in ("cpu", "cpus")
            )
            return {node: part / online[node] for node, part in busy.items() if online.get(node)}

        return self._cached_or_read((cluster, "busy"), now, _FRESH_SECONDS, ask)

    def _cached_or_read(
        self, key: tuple[str, str], now: float, fresh: float, ask: Callable[[TimeSeriesStore], T]
    ) -> T | None:
        if not self._stores.has_store:
            return None
        with self._lock:
            cached, pending = self._cache.get(key), self._pending.get(key)
            if cached and now - cached[0] < fresh:
                return cast(T, cached[1])
            if pending is None or pending.done():
                pending = self._pending[key] = self._threads.submit(self._read, key, now, ask)
        self._answering.wait_for_store([pending])
        with self._lock:
            cached = self._cache.get(key)
        is_recent = cached is not None and now - cached[0] < fresh + _STALE_SECONDS
        return cast(T, cached[1]) if cached and is_recent else None

    def _read(
        self, key: tuple[str, str], now: float, ask: Callable[[TimeSeriesStore], Any]
    ) -> None:
        try:
            with self._stores.acquire() as store:
                value = ask(store)
        except Exception as error:  # the last reading is shown for a while
            log.info("cannot update cluster %s: %r", key[0], error)
            return
        with self._lock:
            self._cache[key] = now, value
