"""Metric families about the cluster's nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from batchjob.schedulers.cluster import ClusterNode, GpuModel
from collectors.cluster import metric_types
from collectors.metric import NO_LABELS, Metric, MetricFamily

Value = Callable[[ClusterNode], float | None]


class NodesReading(NamedTuple):
    nodes: Sequence[ClusterNode]
    unavailable: metric_types.Histogram = metric_types.Histogram()
    draining: metric_types.Histogram = metric_types.Histogram()
    gpu_seconds: Mapping[tuple[str, ...], float] = MappingProxyType({})  # by node and state


def _per_node(value: Value) -> Callable[[NodesReading], Iterable[metric_types.Row]]:
    return lambda reading: ((node.name, value(node)) for node in reading.nodes)


def _per_partition(value: Value) -> Callable[[NodesReading], Iterable[metric_types.Row]]:
    return lambda reading: metric_types.totals(
        (part, value(node)) for node in reading.nodes for part in node.partitions
    )


def _per_gpu_model(
    value: Callable[[GpuModel], float | None],
) -> Callable[[NodesReading], Iterable[metric_types.Row]]:
    return lambda reading: (
        (node.name, each.model, value(each)) for node in reading.nodes for each in node.gpu_models
    )


def _unavailable(reading: NodesReading) -> Iterator[ClusterNode]:
    return (node for node in reading.nodes if not node.is_usable)


def _idle_amount(node: ClusterNode, total: int | None, allocated: int | None) -> float | None:
    if total is None or allocated is None:
        return None
    return max(0, total - allocated) if node.is_usable else 0


# fmt: off
_NODE_METRICS: tuple[tuple[str, str, Value], ...] = (
    ("cpus", "CPUs of the node.", lambda node: node.cpus),
    ("cpus_allocated", "CPUs allocated to jobs.", lambda node: node.cpus_allocated),
    ("cpus_idle",
        "CPUs available to jobs; 0 if the node accepts no jobs.",
        lambda node: _idle_amount(node, node.cpus, node.cpus_allocated)),
    ("memory_bytes",
        "Memory of the node, as configured in the scheduler.", lambda node: node.memory_bytes),
    ("memory_allocated_bytes", "Memory allocated to jobs.",
        lambda node: node.memory_allocated_bytes),
    ("memory_idle_bytes",
        "Memory available to jobs; 0 if the node accepts no jobs.",
        lambda node: _idle_amount(node, node.memory_bytes, node.memory_allocated_bytes)),
    ("gpus", "GPUs of the node.", lambda node: node.gpus),
    ("gpus_allocated", "GPUs allocated to jobs.", lambda node: node.gpus_allocated),
    ("gpus_idle",
        "GPUs available to jobs; 0 if the node accepts no jobs.",
        lambda node: _idle_amount(node, node.gpus, node.gpus_allocated)),
)
# fmt: on
_NODE_VALUES = {name: value for name, _, value in _NODE_METRICS}
_PARTITION_METRICS = (
    ("cpus", "CPUs of the partition."),
    ("cpus_allocated", "CPUs of the partition that are allocated to jobs."),
    ("cpus_idle", "CPUs of the partition that are available to jobs."),
    ("gpus", "GPUs of the partition."),
    ("gpus_allocated", "GPUs of the partition that are allocated to jobs."),
    ("gpus_idle", "GPUs of the partition that are available to jobs."),
)
# fmt: off
NODES = (
    metric_types.gauge("nodes",
        lambda reading: metric_types.totals((node.state, 1) for node in reading.nodes),
        "Nodes by base state.", "state"),
    metric_types.gauge("nodes_flagged",
        lambda reading: metric_types.totals((flag, 1) for n in reading.nodes for flag in n.flags),
        "Nodes by state flag; a node may have several flags.", "flag"),
    metric_types.gauge("partition_nodes",
        lambda reading: metric_types.totals(
            (part, node.state, 1) for node in reading.nodes for part in node.partitions),
        "Nodes of a partition or queue by base state; a node counts in each of its partitions.",
        "partition", "state"),
    metric_types.gauge("node_info",
        lambda reading: ((node.name, node.state, 1) for node in reading.nodes),
        "Base state of the node; always 1.", "node", "state"),
    metric_types.gauge("node_flag",
        lambda reading: ((n.name, flag, 1) for n in reading.nodes for flag in sorted(n.flags)),
        "1 for each state flag that is set.", "node", "flag"),
    metric_types.gauge("node_unavailable_info",
        lambda reading: ((n.name, n.reason, 1) for n in _unavailable(reading) if n.reason),
        "Reason given for a node that accepts no jobs, shortened to 64 characters, without paths, "
        "times and long numbers; always 1.", "node", "reason"),
    metric_types.gauge("node_unavailable_since_seconds",
        lambda reading: ((node.name, node.reason_since) for node in _unavailable(reading)),
        "Unix time at which the reason was set.", "node"),
    metric_types.counter("node_failures_total", _per_node(lambda node: node.failures),
        "Number of times the node entered the state down, error or failing since the exporter "
        "started.", "node"),
    *(
        metric_types.gauge(f"node_{name}", _per_node(value), help, "node")
        for name, help, value in _NODE_METRICS
    ),
    metric_types.gauge("node_model_gpus", _per_gpu_model(lambda each: each.gpus),
        "GPUs of the node by model, as named in its GRES.", "node", "model"),
    metric_types.gauge("node_model_gpus_allocated", _per_gpu_model(lambda each: each.allocated),
        "GPUs of a model that are allocated to jobs.", "node", "model"),
    metric_types.counter("node_gpu_seconds_total",
        lambda reading: ((*key, seconds) for key, seconds in sorted(reading.gpu_seconds.items())),
        "GPU time of the node since the exporter started: allocated to jobs, idle, or unavailable "
        "because the node accepts no jobs. Time in which the scheduler did not answer is not "
        "included.", "node", "state"),
    *(
        metric_types.gauge(f"partition_{name}", _per_partition(_NODE_VALUES[name]),
            f"{help} A node in several partitions counts in each.", "partition")
        for name, help in _PARTITION_METRICS
    ),
)
UNAVAILABLE = Metric("batchjob_cluster_node_unavailable_seconds", "histogram",
    "Duration of periods in which a node accepted no jobs; periods that ended since the exporter "
    "started.")
DRAINING = Metric("batchjob_cluster_node_draining_seconds", "histogram",
    "Time from the drain of a node to the end of its last job; drains that ended since the "
    "exporter started.")
# fmt: on


def condition_families(reading: NodesReading) -> Iterator[MetricFamily]:
    yield from metric_types.histogram_families(UNAVAILABLE, {NO_LABELS: reading.unavailable})
    yield from metric_types.histogram_families(DRAINING, {NO_LABELS: reading.draining})
