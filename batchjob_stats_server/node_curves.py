"""A node's measurements over time, from its exporter's metrics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from batchjob.quantities.gpu import (
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
)
from batchjob.quantities.quantity import SeriesKind
from batchjob_stats_db.days import DAY
from batchjob_stats_db.timeseries.base import Point, SeriesQuery, TimeSeries, TimeSeriesStore
from batchjob_stats_server.http.problems import Problem

# The exporter's metrics of a node, and the modes of CPU time in which a CPU is busy.
_NODE = "batchjob_node_"
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_GPU = ("gpu", "uuid", "gpu_instance")
_MOST_DAYS = 31


class NodeCurve(NamedTuple):
    """A measurement of a node, and its unit."""

    name: str
    unit: str
    query: SeriesQuery
    subtracted: SeriesQuery | None = None  # subtracted from `query`


def _gauge(name: str, unit: str, metric: str, by: tuple[str, ...] = ()) -> NodeCurve:
    return NodeCurve(name, unit, SeriesQuery(metric, SeriesKind.GAUGE, by=by))


NODE_CURVES: Mapping[str, NodeCurve] = {
    curve.name: curve
    for curve in (
        NodeCurve(
            "cpu", "cores",
            SeriesQuery(
                f"{_NODE}cpu_seconds_total", SeriesKind.RATE, {"mode": _BUSY}, summed=("mode",)
            ),
        ),
        _gauge("cpus", "cores", f"{_NODE}cpus"),
        NodeCurve(
            "memory", "bytes", SeriesQuery(f"{_NODE}memory_total_bytes", SeriesKind.GAUGE),
            SeriesQuery(f"{_NODE}memory_available_bytes", SeriesKind.GAUGE),
        ),
        _gauge("memory_total", "bytes", f"{_NODE}memory_total_bytes"),
        NodeCurve(
            "power", "watts",
            SeriesQuery(
                f"{_NODE}energy_joules_total", SeriesKind.RATE, by=("component",),
                summed=("consumer",),
            ),
        ),
        _gauge("gpu_utilization", "ratio", GPU_UTILIZATION.name, _GPU),
        _gauge("gpu_memory", "bytes", GPU_MEMORY_USED.name, _GPU),
        _gauge("gpu_memory_total", "bytes", GPU_MEMORY_TOTAL.name, _GPU),
        _gauge("gpu_power", "watts", GPU_POWER.name, _GPU),
        _gauge("gpu_temperature", "celsius", GPU_TEMPERATURE.name, _GPU),
    )
}  # fmt: skip


def node_window(since: int | None, until: int | None, now: int) -> tuple[int, int]:
    """Start and end in epoch seconds: the last day by default, at most a month."""
    end = now if until is None else until
    begin = end - DAY if since is None else since
    if begin >= end:
        raise Problem(422, "since: expected a time before until")
    return max(begin, end - _MOST_DAYS * DAY), end


class NodePlot(NamedTuple):
    """Curves that are drawn together, and the limit that is drawn with them."""

    title: str
    curves: tuple[str, ...]
    limit: str = ""
    ceiling: float | None = None
    gpu: bool = False


NODE_PLOTS = (
    NodePlot("CPUs in use", ("cpu",), "cpus"),
    NodePlot("Memory in use", ("memory",), "memory_total"),
    NodePlot("Power", ("power",)),
    NodePlot("GPU use", ("gpu_utilization",), ceiling=1.0, gpu=True),
    NodePlot("GPU memory", ("gpu_memory",), "gpu_memory_total", gpu=True),
    NodePlot("GPU power", ("gpu_power",), gpu=True),
    NodePlot("GPU temperature", ("gpu_temperature",), gpu=True),
)


def node_lines(
    history: TimeSeriesStore, cluster: str, instance: str, window: tuple[int, int],
    curves: Sequence[NodeCurve], points: int,
) -> Iterator[tuple[NodeCurve, str, TimeSeries]]:  # fmt: skip
    """The lines of the curves, each with the name that distinguishes it from others of its curve.

    `window`: epoch seconds. Raises TimeSeriesError.
    """
    for curve in curves:
        found = history.node_series(curve.query, cluster, instance, *window, points)
        if curve.subtracted is not None:
            less = history.node_series(curve.subtracted, cluster, instance, *window, points)
            found = [_difference(whole, rest) for whole, rest in zip(found, less, strict=False)]
        lines = [(curve, _line_name(each.labels), each) for each in found if each.points]
        yield from sorted(lines, key=lambda line: (len(line[1]), line[1]))


def _line_name(labels: Mapping[str, str]) -> str:
    if not labels.get("gpu"):
        return labels.get("component", "")
    instance = labels.get("gpu_instance")
    return f"GPU {labels['gpu']}" + (f" instance {instance}" if instance else "")


def _difference(whole: TimeSeries, rest: TimeSeries) -> TimeSeries:
    less = {point.time: point.mean for point in rest.points}
    points = [
        Point(point.time, *(point.mean - less[point.time],) * 3)
        for point in whole.points
        if point.time in less
    ]
    return whole._replace(points=points)
