"""The use of a job's nodes and GPUs.

Of GPUs, counters of time are preferred to means of a gauge, which GPUs of other vendors, MIG
instances and exporters of earlier versions have alone. GPUs of which only the number is known are
measured by those that nobody holds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from batchjob.judgements import COMPLETE_COVERAGE, thresholds
from batchjob.quantities import gpu, job
from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.node_names import short_name, without_port
from batchjob_stats_db.timeseries.base import SeriesValue, TimeSeriesStore

Series = Mapping[tuple[Statistic, str], Sequence[SeriesValue]]

_CPUS, _ANON, _SHMEM = (each.metric.name for each in (job.CPUS, job.MEMORY_ANON, job.MEMORY_SHMEM))
_LIMIT, _CURRENT, _PEAK = (
    each.metric.name for each in (job.MEMORY_LIMIT, job.MEMORY_CURRENT, job.MEMORY_PEAK)
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


def by_instance(
    samples: Iterable[SeriesValue], fold: Callable[[Iterable[float]], float] = max
) -> dict[str, float]:
    """The largest value of each instance's series, or another fold of its values."""
    values: dict[str, list[float]] = {}
    for each in samples:
        values.setdefault(each.labels.get("instance", ""), []).append(each.value)
    return {instance: fold(found) for instance, found in values.items()}


def node_usages(series: Series) -> list[NodeUsage]:
    """The nodes with samples, in order of their names."""

    def by_node(
        statistic: Statistic, metric: str, fold: Callable[[Iterable[float]], float] = max
    ) -> dict[str, float]:
        found = by_instance(series.get((statistic, metric), ()), fold)
        return {without_port(instance): value for instance, value in found.items()}

    def peaks(metric: str) -> dict[str, float]:
        return by_node(Statistic.PEAK, metric)

    # Two modes, user and system, are the CPU time of a node.
    cpu = by_node(Statistic.TOTAL, job.CPU_SECONDS.name, sum)
    cpus, limits, memory = peaks(_CPUS), peaks(_LIMIT), peaks(_CURRENT) | peaks(_PEAK)
    anonymous, shared = peaks(_ANON), peaks(_SHMEM)
    without_cache = {node: anonymous[node] + shared.get(node, 0) for node in anonymous}
    return [
        NodeUsage(
            node, cpus.get(node), cpu.get(node), _rounded(memory.get(node)),
            _rounded(without_cache.get(node)), _rounded(limits.get(node)),
        )
        for node in sorted(by_node(Statistic.COUNT, job.CPU_SECONDS.name))
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
        for each in time_series.latest(cluster, [gpu.GPU_MEMORY_TOTAL.name], now)
        for node, uuid, gpu_instance in [map(each.labels.get, _GPU_LABELS, ("", "", ""))]
        if 0 <= each.value < _MAX_GPU_BYTES
    }


_GPU_LABELS = ("instance", "uuid", "gpu_instance")
_MAX_GPU_BYTES = 2**50  # what a node claims beyond that is no GPU


UNIDENTIFIED = "unidentified"
"""Begins the UUID of a GPU that the scheduler allocated, and of which it is not known which one."""


class GpuUsage(NamedTuple):
    """The use of a GPU by the job."""

    node: str
    uuid: str
    gpu_instance: str
    gpu: str
    utilization_ratio: float | None
    memory_peak_bytes: int | None
    samples: int
    observed_seconds: float | None = None  # that the utilisation covers
    shared_seconds: float | None = None  # in which others held it too; None: not counted
    mps_seconds: float | None = None
    memory_total_bytes: int | None = None  # installed, or assigned to the instance
    profiled_seconds: float | None = None  # that the following means cover; None: not measured
    sm_active_ratio: float | None = None
    sm_active_peak_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    sm_occupancy_peak_ratio: float | None = None
    tensor_active_ratio: float | None = None
    tensor_active_peak_ratio: float | None = None
    dram_active_ratio: float | None = None
    dram_active_peak_ratio: float | None = None


UTILIZATION = gpu.JOB_GPU_UTILIZATION.metric.name
_MEMORY = gpu.JOB_GPU_MEMORY.metric.name
_MEMORY_PEAK = gpu.JOB_GPU_MEMORY_PEAK.metric.name
_BUSY = gpu.JOB_GPU_BUSY_SECONDS.metric.name
_OBSERVED = gpu.JOB_GPU_OBSERVED_SECONDS.metric.name
_UNOBSERVED = gpu.JOB_GPU_UNOBSERVED_SECONDS.name
_FREE_BUSY = gpu.JOB_FREE_GPU_BUSY_SECONDS.metric.name
_FREE_OBSERVED = gpu.JOB_FREE_GPU_OBSERVED_SECONDS.metric.name

_PROFILED = gpu.JOB_GPU_PROFILE[gpu.PROFILED_SECONDS].metric.name
_ACTIVE = {x: gpu.JOB_GPU_PROFILE[f"{x}_seconds"].metric.name for x in gpu.PROFILE_RATIOS}
_PEAKS = {x: gpu.JOB_GPU_PROFILE_PEAKS[f"{x}_peak_ratio"].metric.name for x in gpu.PROFILE_RATIOS}

GPU_METRICS: Mapping[Statistic, tuple[str, ...]] = {
    Statistic.TOTAL: (
        _BUSY,
        _OBSERVED,
        _UNOBSERVED,
        _FREE_BUSY,
        _FREE_OBSERVED,
        _PROFILED,
        *_ACTIVE.values(),
    ),
    Statistic.PEAK: (_MEMORY, _MEMORY_PEAK, *_PEAKS.values()),
    Statistic.MEAN: (UTILIZATION,),
}

_Gpu = tuple[str, str, str]  # the first three of GpuUsage


def gpu_usages(
    series: Series, held: Sequence[tuple[str, int]], seconds: float, interval: float
) -> list[GpuUsage]:
    """The GPUs of a job.

    `held` are its nodes with the number of GPUs that the scheduler allocated there, or ("", n) if
    only the number for the whole job is known; `seconds` is the measured time of the job,
    `interval` that between two samples.
    """
    is_allocated = any(number for _, number in held)
    found = [*_identified(series, seconds, interval, is_allocated)]
    for node, allocated in held:
        of_node = [each for each in found if node in ("", short_name(each.node))]
        missing = allocated - len(of_node)
        if missing > 0 and seconds > 0:
            found += _unidentified(series, node, missing, seconds)
    return found


def _identified(
    series: Series, seconds: float, interval: float, is_allocated: bool
) -> Iterator[GpuUsage]:
    numbers: dict[_Gpu, str] = {}

    def by_gpu(statistic: Statistic, metric: str, reason: str = "") -> dict[_Gpu, float]:
        """The largest of each: a series goes on under the GPU's new number if that changes."""
        found: dict[_Gpu, float] = {}
        for each in series.get((statistic, metric), ()):
            key = _gpu_of(each)
            if reason in ("", each.labels.get("reason")) and each.value >= found.get(key, 0.0):
                found[key], numbers[key] = each.value, each.labels.get("gpu", "")
        return found

    means, counts = by_gpu(Statistic.MEAN, UTILIZATION), by_gpu(Statistic.COUNT, UTILIZATION)
    means |= {
        _gpu_of(each): each.value
        for each in series.get((Statistic.MEAN, UTILIZATION), ())
        if each.labels.get("gpu", "") == numbers.get(_gpu_of(each))  # of the most samples
    }
    busy, observed = by_gpu(Statistic.TOTAL, _BUSY), by_gpu(Statistic.TOTAL, _OBSERVED)
    shared = by_gpu(Statistic.TOTAL, _UNOBSERVED, "shared")
    claimed = by_gpu(Statistic.TOTAL, _UNOBSERVED, "claimed")
    mps = by_gpu(Statistic.TOTAL, _UNOBSERVED, "mps")
    free_busy = by_gpu(Statistic.TOTAL, _FREE_BUSY)
    # Of samples where an exporter has no peak; a peak is the more, since it misses less.
    memory = by_gpu(Statistic.PEAK, _MEMORY) | by_gpu(Statistic.PEAK, _MEMORY_PEAK)
    profiled = by_gpu(Statistic.TOTAL, _PROFILED)
    profile: list[dict[_Gpu, float]] = []  # in the order of GpuUsage
    for name, metric in _ACTIVE.items():
        sums = by_gpu(Statistic.TOTAL, metric)
        profile.append({key: min(1.0, sums.get(key, 0.0) / x) for key, x in profiled.items() if x})
        profile.append(by_gpu(Statistic.PEAK, _PEAKS[name]))
    for key in sorted(means.keys() | memory.keys() | observed.keys() | profiled.keys()):
        samples = int(counts.get(key, 0))
        if key in observed:
            unclear = claimed.get(key, 0.0)
            # Of the node's GPUs that no job verifiably holds, whoever claims them; if it is known.
            free = free_busy.get((key[0], "", ""), unclear)
            idle = unclear if is_allocated and free < thresholds().idle_gpu * unclear else 0.0
            known = observed[key] + idle
            covered = min(known, seconds)
            with_others = shared.get(key, 0.0) + unclear - idle
            # Not the first moments of a job that another one joined then.
            is_told = covered > 0 and known >= with_others + mps.get(key, 0.0)
            ratio = min(1.0, busy.get(key, 0.0) / known) if is_told else None
            others: tuple[float | None, float | None] = with_others, mps.get(key, 0.0)
        else:
            covered, ratio = min(samples * interval, seconds), means.get(key)
            others = None, None
        peak = round(memory[key]) if key in memory else None
        active = (profiled.get(key), *(each.get(key) for each in profile))
        yield GpuUsage(*key, numbers[key], ratio, peak, samples, covered, *others, None, *active)


def _gpu_of(sample: SeriesValue) -> _Gpu:
    node, uuid, instance = (sample.labels.get(name, "") for name in _GPU_LABELS)
    return without_port(node), uuid, instance


def _unidentified(series: Series, node: str, number: int, seconds: float) -> Iterator[GpuUsage]:
    """GPUs of which only the number is known, by what the node's free GPUs did.

    If these are no more than the job's, they are the job's. If they are more, the job's were not
    busier than all of them together, which says something only if that is next to nothing. None
    without counters of free GPUs.
    """
    sums: dict[str, float] = defaultdict(float)
    nodes: Counter[str] = Counter()
    for metric in (_FREE_BUSY, _FREE_OBSERVED):
        for each in series.get((Statistic.TOTAL, metric), ()):
            name = without_port(each.labels.get("instance", ""))
            if node in ("", short_name(name)):
                sums[metric] += each.value
                nodes[name] += 1
    if not nodes:
        return
    busy, free = sums[_FREE_BUSY], sums[_FREE_OBSERVED] / seconds
    ratio: float | None = min(1.0, busy / (number * seconds))
    if free < COMPLETE_COVERAGE * number:
        ratio = None  # its GPUs, or their samples, are not all among them
    elif free * COMPLETE_COVERAGE > number and busy / (number * seconds) >= thresholds().idle_gpu:
        ratio = None
    covered = None if ratio is None else min(seconds, free * seconds / number)
    for index in range(1, number + 1):
        uuid = f"{UNIDENTIFIED} {index}"
        name = next(iter(nodes)) if len(nodes) == 1 else ""
        yield GpuUsage(name, uuid, "", "", ratio, None, 0, covered, 0.0, 0.0)


def gpu_columns(gpus: Sequence[GpuUsage]) -> dict[str, float | int]:
    values: dict[str, float | int] = {"gpus": len(gpus)} if gpus else {}
    known = [
        (each.utilization_ratio, each.observed_seconds)
        for each in gpus
        if each.utilization_ratio is not None and each.observed_seconds
    ]
    observed = math.fsum(seconds for _, seconds in known)
    if observed:
        busy = math.fsum(ratio * seconds for ratio, seconds in known)
        values["gpu_busy_seconds"], values["gpu_observed_seconds"] = busy, observed
        values["gpu_utilization_ratio"] = busy / observed
    memory = [each.memory_peak_bytes for each in gpus if each.memory_peak_bytes is not None]
    if memory:
        values["gpu_memory_peak_bytes"] = max(memory)
    profiled = [each for each in gpus if each.profiled_seconds and each.sm_active_ratio is not None]
    seconds = math.fsum(each.profiled_seconds or 0.0 for each in profiled)
    for name in gpu.PROFILE_RATIOS if profiled else ():
        sums = ((each.profiled_seconds or 0) * getattr(each, f"{name}_ratio") for each in profiled)
        values[f"gpu_{name}_ratio"] = math.fsum(sums) / seconds
    return values
