"""The use of each of a job's nodes: CPU time, memory, and what the job had there."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from batchjob.quantities.gpu import GPU_MEMORY_TOTAL
from batchjob.quantities.job import (
    CPU_SECONDS,
    CPUS,
    MEMORY_ANON,
    MEMORY_CURRENT,
    MEMORY_LIMIT,
    MEMORY_PEAK,
    MEMORY_SHMEM,
)
from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.node_names import without_port
from batchjob_stats_db.timeseries.base import SeriesValue, TimeSeriesStore

_CPUS, _ANON, _SHMEM, _LIMIT, _CURRENT, _PEAK = (
    each.metric.name
    for each in (CPUS, MEMORY_ANON, MEMORY_SHMEM, MEMORY_LIMIT, MEMORY_CURRENT, MEMORY_PEAK)
)
NODE_PEAKS = (_CPUS, _ANON, _SHMEM)
"""Metrics of which the peaks are needed for nodes alone."""


class NodeUsage(NamedTuple):
    """A row of job_node_usage, without its job."""

    node: str
    cpus: float | None
    cpu_seconds: float | None
    memory_peak_bytes: int | None  # the kernel's, with page cache; of samples where it has none
    # Peaks of anonymous and of shared memory, added up: at least the peak of both together.
    memory_without_cache_bytes: int | None
    memory_limit_bytes: int | None


_Series = Mapping[tuple[Statistic, str], Sequence[SeriesValue]]


def node_usages(series: _Series) -> list[NodeUsage]:
    """The nodes with samples, in order of their names."""

    def by_node(
        statistic: Statistic, metric: str, fold: Callable[[Iterable[float]], float] = max
    ) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for each in series.get((statistic, metric), ()):
            values.setdefault(without_port(each.labels.get("instance", "")), []).append(each.value)
        return {node: fold(found) for node, found in values.items()}

    def peaks(metric: str) -> dict[str, float]:
        return by_node(Statistic.PEAK, metric)

    # Two modes, user and system, are the CPU time of a node.
    cpu = by_node(Statistic.TOTAL, CPU_SECONDS.name, sum)
    cpus, limits, memory = peaks(_CPUS), peaks(_LIMIT), peaks(_CURRENT) | peaks(_PEAK)
    anonymous, shared = peaks(_ANON), peaks(_SHMEM)
    without_cache = {node: anonymous[node] + shared.get(node, 0) for node in anonymous}
    return [
        NodeUsage(
            node, cpus.get(node), cpu.get(node), _rounded(memory.get(node)),
            _rounded(without_cache.get(node)), _rounded(limits.get(node)),
        )
        for node in sorted(by_node(Statistic.COUNT, CPU_SECONDS.name))
        if node
    ]  # fmt: skip


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def installed_gpu_memory(
    time_series: TimeSeriesStore, cluster: str, now: float
) -> dict[tuple[str, str, str], int]:
    """Bytes of each GPU and instance, by node, UUID and instance, as the nodes report them now.

    Raises TimeSeriesError.
    """
    return {
        (without_port(node), uuid, gpu_instance): round(each.value)
        for each in time_series.latest(cluster, [GPU_MEMORY_TOTAL.name], now)
        for node, uuid, gpu_instance in [map(each.labels.get, _GPU_LABELS, ("", "", ""))]
        if 0 <= each.value < _MAX_GPU_BYTES
    }


_GPU_LABELS = ("instance", "uuid", "gpu_instance")
_MAX_GPU_BYTES = 2**50  # what a node claims beyond that is no GPU
