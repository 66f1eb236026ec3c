"""The series of schedulers and exporters about the nodes and accounts of the recorded cluster."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from batchjob.quantities.gpu import (
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    JOB_GPU_INFO,
)
from batchjob_cli.up.demo_recording import (
    CLUSTER,
    MIB,
    DemoJob,
    NodeLoad,
    Recording,
    gpu_watts,
    power_watts,
    uuid,
)
from batchjob_stats_db.timeseries.base import EXPORTER, Point, SeriesQuery, SeriesValue, TimeSeries
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server.cluster_readings import ACCOUNT, NODE, ClusterReadings
from batchjob_stats_server.curves import NODE_CURVES
from batchjob_stats_server.services import Services
from batchjob_stats_server.turns import TimeSeriesPool

_GIB = 1024 * MIB
_IDLE_CORES, _IDLE_WATTS, _SYSTEM_BYTES = 0.3, 90.0, 6 * _GIB
_GPU_MEMORY_BYTES = 80 * _GIB
_SHORTEST_STEP_SECONDS = 30.0
_SIMULTANEOUS_QUERIES = 4


_NodeStay = tuple[float, float, int, DemoJob]
"""Start and end (epoch seconds) of a job on one of its nodes, and which of them that is."""


def with_nodes(services: Services, samples: Path, recording: Recording) -> Services:
    """Add the series of the recorded nodes to the services."""
    services.readings.stop()
    pool = TimeSeriesPool([DemoHistory(samples, recording) for _ in range(_SIMULTANEOUS_QUERIES)])
    return services._replace(stores=pool, readings=ClusterReadings(pool, services.threads))


class DemoHistory:
    """Samples of all jobs, and series of the recorded cluster's nodes."""

    source = SampleHistory.source

    def __init__(self, samples: Path, recording: Recording) -> None:
        files = SampleHistory(samples)
        self.measure, self.job_series = files.measure, files.job_series
        self.last_sample_times = files.last_sample_times
        self.measure_cluster = files.measure_cluster
        self._recording = recording
        self._stays: dict[str, list[_NodeStay]] = {node: [] for node in recording.nodes}
        for job in recording.jobs:
            start, end = job.record.start_time, job.record.end_time
            if start is None or end is None:
                continue
            for node_index, share in enumerate(job.record.nodes):
                self._stays[share.node].append((start, end, node_index, job))

    def latest(
        self, cluster: str, metrics: Sequence[str], now: float, instance: str = ""
    ) -> list[SeriesValue]:
        if cluster != CLUSTER:
            return []
        if instance:
            return [each for each in self._gpu_series(instance, now) if each.metric in metrics]
        found = [each for node in self._stays for each in self._scheduler_series(node, now)]
        for account, shares in _shares(self._recording.jobs, now):
            found += [
                SeriesValue(ACCOUNT + name, {"account": account}, value)
                for name, value in shares.items()
            ]
        return [each for each in found if each.metric in metrics]

    def scrape_ratios(self, cluster: str, metric: str, *_when: float) -> list[SeriesValue]:
        return [
            SeriesValue(metric, {"instance": node}, facts.get("exporter_up_ratio", 1.0))
            for node, facts in self._recording.nodes.items()
            if cluster == CLUSTER and metric == EXPORTER and facts.get("state") != "down"
        ]

    def node_series(
        self, asked: SeriesQuery, cluster: str, instance: str, since: int, until: int, points: int
    ) -> list[TimeSeries]:
        if cluster == CLUSTER and not instance:
            return [
                each._replace(labels={**each.labels, "instance": node})
                for node in self._stays
                if self._recording.nodes[node].get("state") != "down"
                for each in self.node_series(asked, cluster, node, since, until, points)
            ]
        if cluster != CLUSTER or instance not in self._stays:
            return []
        step = max((until - since) / points, _SHORTEST_STEP_SECONDS)
        times = [since + step * number for number in range(1, int((until - since) / step) + 1)]
        stays = [stay for stay in self._stays[instance] if stay[0] < until and stay[1] > since]
        loads = [(time, self._load_at(instance, stays, time)) for time in times]
        facts = self._recording.nodes[instance]
        return [
            TimeSeries(labels, [Point(time, *(value(facts, load),) * 3) for time, load in loads])
            for labels, value in _lines(instance, facts, asked)
        ]

    def _load_at(self, node: str, stays: Sequence[_NodeStay], now: float) -> NodeLoad:
        cores = self._recording.nodes[node].get("stray_cores", _IDLE_CORES)
        memory = float(_SYSTEM_BYTES)
        gpus = dict.fromkeys(range(self._recording.nodes[node]["gpus"]), (0.0, 0.0))
        for start, end, node_index, job in stays:
            if start <= now < end:
                load = job.load_at(node_index, (now - start) / max(end - start, 1.0))
                cores, memory = cores + load.cores, memory + load.memory_bytes
                gpus |= load.gpus
        return NodeLoad(cores, memory, gpus)

    def _scheduler_series(self, node: str, now: float) -> Iterator[SeriesValue]:
        facts, of = self._recording.nodes[node], {"node": node}
        shares = [
            job.record.nodes[node_index]
            for start, end, node_index, job in self._stays[node]
            if start <= now < end
        ]
        cpus = sum(share.cpus or 0 for share in shares)
        state = facts.get("state", "idle")
        if shares:
            state = "allocated" if cpus == facts["cpus"] else "mixed"
        amounts = {
            "cpus": facts["cpus"], "cpus_allocated": cpus,
            "memory_bytes": facts["memory_gib"] * _GIB, "gpus": facts["gpus"],
            "memory_allocated_bytes": sum(share.memory_bytes or 0 for share in shares),
            "gpus_allocated": sum(share.gpus or 0 for share in shares),
        }  # fmt: skip
        yield SeriesValue(f"{NODE}info", {**of, "state": state}, 1.0)
        for name, amount in amounts.items():
            yield SeriesValue(NODE + name, of, float(amount))
        if flag := facts.get("flag"):
            yield SeriesValue(f"{NODE}flag", {**of, "flag": flag}, 1.0)
        if reason := facts.get("reason"):
            yield SeriesValue(f"{NODE}unavailable_info", {**of, "reason": reason}, 1.0)
        if facts.get("state") != "down":
            yield SeriesValue(EXPORTER, {"instance": node}, float(facts["cpus"]))

    def _gpu_series(self, node: str, now: float) -> Iterator[SeriesValue]:
        stays = [stay for stay in self._stays[node] if stay[0] <= now < stay[1]]
        for gpu, (ratio, memory) in self._load_at(node, stays, now).gpus.items():
            labels = {**_gpu_labels(node, gpu), "instance": node}
            for metric, value in _GPU_VALUES.items():
                yield SeriesValue(metric, labels, value(ratio, memory))
            for *_, node_index, job in stays:
                if str(gpu) in job.loads[node_index]["gpus"]:
                    info_labels = {**labels, "jobid": job.record.jobid, "confirmed": "true"}
                    yield SeriesValue(JOB_GPU_INFO.name, info_labels, 1.0)


def _gpu_labels(node: str, gpu: int) -> dict[str, str]:
    return {"gpu": str(gpu), "uuid": uuid(node, gpu), "gpu_instance": ""}


_GPU_VALUES: Mapping[str, Callable[[float, float], float]] = {
    GPU_UTILIZATION.name: lambda ratio, _: ratio,
    GPU_MEMORY_USED.name: lambda _, memory: memory,
    GPU_MEMORY_TOTAL.name: lambda *_: float(_GPU_MEMORY_BYTES),
    GPU_POWER.name: lambda ratio, _: gpu_watts(ratio),
    GPU_TEMPERATURE.name: lambda ratio, _: 34 + 30 * ratio,
}

_Value = Callable[[Mapping[str, int], NodeLoad], float]
"""Of the facts about a node and its load."""

_AVAILABLE = NODE_CURVES["memory"].subtracted
assert _AVAILABLE is not None
_NODE_VALUES: Mapping[str, _Value] = {
    NODE_CURVES["cpu"].query.metric: lambda _, load: load.cores,
    NODE_CURVES["cpus"].query.metric: lambda facts, _: float(facts["cpus"]),
    NODE_CURVES["memory"].query.metric: lambda facts, _: float(facts["memory_gib"] * _GIB),
    _AVAILABLE.metric: lambda facts, load: facts["memory_gib"] * _GIB - load.memory_bytes,
    NODE_CURVES["power"].query.metric: lambda _, load: (
        _IDLE_WATTS + power_watts(0, load)["host", "active"]
    ),
}


def _lines(
    node: str, facts: Mapping[str, int], asked: SeriesQuery
) -> Iterator[tuple[Mapping[str, str], _Value]]:
    """The series of a metric: one with its component where that is asked for, or one a GPU."""
    if value := _NODE_VALUES.get(asked.metric):
        yield {"component": "host"} if "component" in asked.by else {}, value
        return
    gpu_value = _GPU_VALUES[asked.metric]
    for gpu in range(facts["gpus"]):
        yield (
            _gpu_labels(node, gpu),
            lambda _, load, gpu=gpu: gpu_value(*load.gpus[gpu]),  # type: ignore[misc]
        )


def _shares(jobs: Sequence[DemoJob], now: float) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Fair shares: all accounts have the same, and use what their jobs had that have ended."""
    used: dict[str, float] = defaultdict(float)
    for record in (job.record for job in jobs):
        if record.end_time is not None and record.end_time <= now:
            used[record.account] += (record.elapsed_seconds or 0) * (record.allocated_cpus or 0)
    whole = sum(used.values()) or 1.0
    for account, part in used.items():
        share, usage = 1 / len(used), part / whole
        yield account, {
            "shares_ratio": share, "usage_ratio": usage,
            "fairshare_level": share / usage if usage else 0.0,
        }  # fmt: skip
