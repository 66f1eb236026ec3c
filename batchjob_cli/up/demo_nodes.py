"""The series of schedulers and exporters about the nodes and accounts of the simulated cluster."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from batchjob.quantities.gpu import (
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    JOB_GPU_INFO,
)
from batchjob_cli.up import demo_usage
from batchjob_cli.up.demo_cluster import (
    CLUSTER,
    CPU_NODES,
    GIB,
    GPU_NODES,
    DemoJob,
    jobs_at,
)
from batchjob_stats_db.timeseries.base import EXPORTER, NodeQuery, Point, SeriesValue, TimeSeries
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server.cluster_readings import ACCOUNT, NODE, ClusterReadings
from batchjob_stats_server.node_curves import NODE_CURVES
from batchjob_stats_server.promql.histories import TimeSeriesPool
from batchjob_stats_server.services import Services

_CPUS_PER_NODE, _GPUS_PER_NODE = 64, 8
_UNAVAILABLE = {"c21": ("idle", "drain", "memory errors"), "c22": ("down", "", "not responding")}
_IDLE_WATTS, _SYSTEM_BYTES = 90.0, 6 * GIB
_EXPORTER_UP_RATIOS = {"c07": 0.86}  # part of the time in which a node's exporter answered
_SIMULTANEOUS_QUERIES = 4


class NodeStay(NamedTuple):
    """A job on one of its nodes; times in epoch seconds."""

    start: float
    end: float
    node_index: int
    job: DemoJob


class NodeLoad(NamedTuple):
    """A whole node for a while."""

    cores: float
    memory_bytes: float
    watts: float
    gpu_ratios: tuple[float, ...]


def with_nodes(services: Services, samples: Path, jobs: Sequence[DemoJob]) -> Services:
    """Add the series of the simulated nodes, on which the planned jobs run, to the services."""
    if services.readings:
        services.readings.stop()
    pool = TimeSeriesPool([DemoHistory(samples, jobs) for _ in range(_SIMULTANEOUS_QUERIES)])
    return services._replace(histories=pool, readings=ClusterReadings(pool, services.bounded_wait))


class DemoHistory:
    """Samples of all jobs, and series of the simulated cluster's nodes."""

    source = SampleHistory.source

    def __init__(self, samples: Path, jobs: Sequence[DemoJob]) -> None:
        files = SampleHistory(samples)
        self.measure, self.job_series = files.measure, files.job_series
        self.last_sample_times = files.last_sample_times
        self.measure_cluster = files.measure_cluster
        self._stays: dict[str, list[NodeStay]] = {
            node: [] for node in (*CPU_NODES, *GPU_NODES, *_UNAVAILABLE)
        }
        for job in sorted(jobs, key=lambda each: each.record.start_time or 0):
            start, end = job.record.start_time, job.record.end_time
            assert start is not None
            assert end is not None
            for node_index, share in enumerate(job.record.nodes):
                self._stays[share.node].append(NodeStay(start, end, node_index, job))
        self._jobs = jobs

    def latest(
        self, cluster: str, metrics: Sequence[str], now: float, instance: str = ""
    ) -> list[SeriesValue]:
        """See TimeSeriesStore."""
        if cluster != CLUSTER:
            return []
        if instance:
            return [each for each in self._gpu_series(instance, now) if each.metric in metrics]
        found = [each for node in self._stays for each in self._scheduler_series(node, now)]
        for account, shares in _shares(self._jobs, now):
            found += [
                SeriesValue(ACCOUNT + name, {"account": account}, value)
                for name, value in shares.items()
            ]
        return [each for each in found if each.metric in metrics]

    def scrape_ratios(self, cluster: str, metric: str, *_when: float) -> list[SeriesValue]:
        """See TimeSeriesStore."""
        return [
            SeriesValue(metric, {"instance": node}, _EXPORTER_UP_RATIOS.get(node, 1.0))
            for node in self._stays
            if cluster == CLUSTER and metric == EXPORTER and _is_up(node)
        ]

    def node_series(
        self, asked: NodeQuery, cluster: str, instance: str, since: int, until: int, points: int
    ) -> list[TimeSeries]:
        """See TimeSeriesStore."""
        if cluster != CLUSTER or instance not in self._stays:
            return []
        step = max((until - since) / points, 30.0)
        times = [since + step * number for number in range(1, int((until - since) / step) + 1)]
        loads = [(time, self._load_at(instance, time)) for time in times]
        return [
            TimeSeries(labels, [Point(time, *(value(now),) * 3) for time, now in loads])
            for labels, value in _LINES[asked.metric](instance, asked)
        ]

    def _stay_at(self, node: str, time: float) -> NodeStay | None:
        """The job on a node at a time; a node runs one job at a time."""
        stays = self._stays[node]
        index = bisect_right(stays, time, key=lambda stay: stay.start)
        return stays[index - 1] if index and time < stays[index - 1].end else None

    def _load_at(self, node: str, time: float) -> NodeLoad:
        stay, gpus = self._stay_at(node, time), _GPUS_PER_NODE if node in GPU_NODES else 0
        if stay is None:
            return NodeLoad(0.3, _SYSTEM_BYTES, _IDLE_WATTS, (0.0,) * gpus)
        part = (time - stay.start) / (stay.end - stay.start)
        job = demo_usage.load_at(stay.job, stay.node_index, part)
        ratios = (*job.gpu_ratios, *(0.0,) * gpus)[:gpus]
        watts = _IDLE_WATTS + demo_usage.power_watts(0, job.cores, [])["host", "active"]
        return NodeLoad(job.cores + 0.3, job.memory_bytes + _SYSTEM_BYTES, watts, ratios)

    def _scheduler_series(self, node: str, now: float) -> Iterator[SeriesValue]:
        stay, gpus = self._stay_at(node, now), _GPUS_PER_NODE if node in GPU_NODES else 0
        allocation = stay.job.recipe if stay else None
        state, flag, reason = _UNAVAILABLE.get(node, ("idle", "", ""))
        if allocation:
            state = "allocated" if allocation.cpus == _CPUS_PER_NODE else "mixed"
        amounts = {
            "cpus": _CPUS_PER_NODE, "cpus_allocated": allocation.cpus if allocation else 0,
            "memory_bytes": _installed_memory_bytes(node), "gpus": gpus,
            "memory_allocated_bytes": allocation.memory_gib * GIB if allocation else 0,
            "gpus_allocated": allocation.gpus if allocation else 0,
        }  # fmt: skip
        of = {"node": node}
        yield SeriesValue(f"{NODE}info", {**of, "state": state}, 1.0)
        for name, amount in amounts.items():
            yield SeriesValue(NODE + name, of, float(amount))
        if flag:
            yield SeriesValue(f"{NODE}flag", {**of, "flag": flag}, 1.0)
        if reason:
            yield SeriesValue(f"{NODE}unavailable_info", {**of, "reason": reason}, 1.0)
        if _is_up(node):
            yield SeriesValue(EXPORTER, {"instance": node}, float(_CPUS_PER_NODE))

    def _gpu_series(self, node: str, now: float) -> Iterator[SeriesValue]:
        stay = self._stay_at(node, now)
        for gpu, ratio in enumerate(self._load_at(node, now).gpu_ratios):
            labels = {**_gpu_labels(node, gpu), "instance": node}
            for metric, value in _GPU_VALUES.items():
                yield SeriesValue(metric, labels, value(ratio))
            if stay and gpu < stay.job.recipe.gpus:
                info_labels = {**labels, "jobid": stay.job.record.jobid, "confirmed": "true"}
                yield SeriesValue(JOB_GPU_INFO.name, info_labels, 1.0)


def _is_up(node: str) -> bool:
    return _UNAVAILABLE.get(node, ("",))[0] != "down"


def _installed_memory_bytes(node: str) -> int:
    return (512 if node in GPU_NODES else 256) * GIB


def _gpu_labels(node: str, gpu: int) -> dict[str, str]:
    return {"gpu": str(gpu), "uuid": demo_usage.uuid(node, gpu), "gpu_instance": ""}


_GPU_VALUES: Mapping[str, Callable[[float], float]] = {
    GPU_UTILIZATION.name: lambda ratio: ratio,
    GPU_MEMORY_USED.name: lambda ratio: demo_usage.GPU_MEMORY * ratio,
    GPU_MEMORY_TOTAL.name: lambda _: float(demo_usage.GPU_MEMORY_TOTAL),
    GPU_POWER.name: demo_usage.gpu_watts,
    GPU_TEMPERATURE.name: lambda ratio: 34 + 30 * ratio,
}

_Lines = Sequence[tuple[Mapping[str, str], Callable[[NodeLoad], float]]]


def _node_lines(value: Callable[[str, NodeLoad], float]) -> Callable[[str, NodeQuery], _Lines]:
    """One line, with the labels of its component where these are asked for."""

    def lines(node: str, asked: NodeQuery) -> _Lines:
        labels = {"component": "host"} if "component" in asked.by else {}
        return [(labels, lambda now: value(node, now))]

    return lines


def _gpu_lines(value: Callable[[float], float]) -> Callable[[str, NodeQuery], _Lines]:
    """A line for each GPU."""

    def of(gpu: int) -> Callable[[NodeLoad], float]:
        return lambda now: value(now.gpu_ratios[gpu])

    def lines(node: str, _: NodeQuery) -> _Lines:
        many = _GPUS_PER_NODE if node in GPU_NODES else 0
        return [(_gpu_labels(node, gpu), of(gpu)) for gpu in range(many)]

    return lines


def _metric(curve: str) -> str:
    return NODE_CURVES[curve].query.metric


_AVAILABLE = NODE_CURVES["memory"].subtracted
assert _AVAILABLE is not None
_LINES: Mapping[str, Callable[[str, NodeQuery], _Lines]] = {
    _metric("cpu"): _node_lines(lambda _, now: now.cores),
    _metric("cpus"): _node_lines(lambda *_: float(_CPUS_PER_NODE)),
    _metric("memory"): _node_lines(lambda node, _: float(_installed_memory_bytes(node))),
    _AVAILABLE.metric: _node_lines(
        lambda node, now: _installed_memory_bytes(node) - now.memory_bytes
    ),
    _metric("power"): _node_lines(lambda _, now: now.watts),
    **{metric: _gpu_lines(value) for metric, value in _GPU_VALUES.items()},
}


def _shares(jobs: Sequence[DemoJob], now: float) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Fair shares: all accounts have the same, and use what their jobs had that have ended."""
    used: dict[str, float] = defaultdict(float)
    for job in jobs_at(jobs, now):
        used[job.record.account] += (job.record.elapsed_seconds or 0) * (
            job.record.allocated_cpus or 0
        )
    whole = sum(used.values()) or 1.0
    for account, part in used.items():
        share, usage = 1 / len(used), part / whole
        yield account, {
            "shares_ratio": share, "usage_ratio": usage,
            "fairshare_level": share / usage if usage else 0.0,
        }  # fmt: skip
