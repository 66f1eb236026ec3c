"""The curves of a job, from its measurements, and of a node, from its exporter's metrics."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from batchjob.quantities.curves import Curve, CurveSource
from batchjob.quantities.gpu import (
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    JOB_GPU_INFO,
)
from batchjob.quantities.quantity import SeriesKind
from batchjob.schedulers.node_names import without_port
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.job_usage import (
    JobToMeasure,
    foreign_instances,
    instances_with_user,
    returned_at,
    user_labels,
)
from batchjob_stats_db.timeseries.base import (
    JobWindow,
    Point,
    SeriesQuery,
    TimeSeries,
    TimeSeriesStore,
)

_GPU_INFO = JOB_GPU_INFO.name


class JobGpu(NamedTuple):
    """A GPU, or an instance of one, that the job had."""

    node: str
    gpu: str
    uuid: str
    gpu_instance: str


_ALL_DEVICES = JobGpu("", "", "", "")


class JobSeries(NamedTuple):
    """One line of a plot."""

    curve: Curve
    device: JobGpu  # only `node` is set if the line is not a GPU's
    part: str
    series: TimeSeries

    @property
    def title(self) -> str:
        gpu = f"GPU {self.device.gpu}" if self.device.uuid else ""
        instance = self.device.gpu_instance
        return " ".join(word for word in (self.device.node, gpu, instance, self.part) if word)


def job_series(
    history: TimeSeriesStore, job: JobToMeasure, curves: Sequence[Curve], max_points: int
) -> Iterator[JobSeries]:
    """The lines of the curves, by node, GPU and part; raises TimeSeriesError."""
    devices: Sequence[JobGpu] | None = None
    for curve in curves:
        for source in curve.sources:
            if source.of_gpu and devices is None:
                devices = confirmed_gpus(history, job)
            found = (
                _series_of_gpus(history, job.window, source, max_points, devices or ())
                if source.of_gpu
                else _series_of_job(history, job, source, max_points)
            )
            lines = [
                JobSeries(curve, device, part, _scale(series, source.scale))
                for device, part, series in found
                if series.points
            ]
            if lines:
                yield from sorted(lines, key=lambda line: (*line.device, line.part))
                break


def aggregate(all_lines: Sequence[JobSeries]) -> list[JobSeries]:
    """One line for each curve and part: minimum, median and maximum of its nodes and GPUs."""
    groups: dict[tuple[str, str], list[JobSeries]] = {}
    for line in all_lines:
        groups.setdefault((line.curve.name, line.part), []).append(line)
    return [
        JobSeries(lines[0].curve, _ALL_DEVICES, part, _band([line.series for line in lines]))
        for (_, part), lines in groups.items()
    ]


def _band(all_series: Sequence[TimeSeries]) -> TimeSeries:
    seen: dict[float, list[Point]] = {}
    for series in all_series:
        for point in series.points:
            seen.setdefault(point.time, []).append(point)
    band = []
    for time, points in sorted(seen.items()):
        _, low, mean, high = zip(*points, strict=True)
        band.append(Point(time, min(low), median(mean), max(high)))
    return TimeSeries({}, band)


def confirmed_gpus(history: TimeSeriesStore, job: JobToMeasure) -> list[JobGpu]:
    """The job's GPUs according to sources that its user cannot write.

    A job's environment may name the GPUs of others, whose series would reveal what these do.
    """
    query = SeriesQuery(_GPU_INFO, SeriesKind.GAUGE, {"jobid": [job.jobid], "confirmed": ["true"]})
    found = history.job_series(query, job.window, 1)
    return sorted({_device(series.labels) for series in _keep_own(job, found)})


def _series_of_job(
    history: TimeSeriesStore, job: JobToMeasure, source: CurveSource, max_points: int
) -> Iterator[tuple[JobGpu, str, TimeSeries]]:
    where = {"jobid": [job.jobid], **{label: [value] for label, value in source.where}}
    query = SeriesQuery(source.metric, source.kind, where, source.summed)
    for series in _keep_own(job, history.job_series(query, job.window, max_points)):
        yield _device(series.labels), series.labels.get(source.part, ""), series


def _series_of_gpus(
    history: TimeSeriesStore,
    window: JobWindow,
    source: CurveSource,
    max_points: int,
    devices: Sequence[JobGpu],
) -> Iterator[tuple[JobGpu, str, TimeSeries]]:
    """Series of whole GPUs, which are not labelled by job: DCGM's label is `UUID`.

    Only the node that has the GPU tells of it: any other could use its UUID.
    """
    label = "UUID" if source.metric.startswith("DCGM_") else "uuid"
    known = {(each.node, each.uuid, each.gpu_instance): each for each in devices if each.uuid}
    if not known:
        return
    query = SeriesQuery(source.metric, source.kind, {label: sorted({key[1] for key in known})})
    for series in history.job_series(query, window, max_points):
        node = without_port(series.labels.get("instance", ""))
        instance = series.labels.get("gpu_instance", series.labels.get("GPU_I_ID", ""))
        device = known.get((node, series.labels.get(label, ""), instance))
        if device:
            yield device, "", series


def _keep_own(job: JobToMeasure, candidates: Iterable[TimeSeries]) -> list[TimeSeries]:
    """The series of this job, not those of another user who had its id, nor of other nodes."""
    all_series = list(candidates)
    foreign = foreign_instances(job, {each.labels.get("instance", "") for each in all_series})
    all_series = [each for each in all_series if each.labels.get("instance", "") not in foreign]
    if job.returned:  # of a node that the job gave back, the series up to then
        ends = [returned_at(job, each.labels.get("instance", "")) for each in all_series]
        all_series = [
            series
            if end is None
            else series._replace(points=[point for point in series.points if point.time <= end])
            for series, end in zip(all_series, ends, strict=True)
        ]
    users, named = user_labels(job), instances_with_user(series.labels for series in all_series)
    return [
        series
        for series in all_series
        if (user := series.labels.get("user", "")) in users
        or (not user and series.labels.get("instance", "") not in named)
    ]


def _device(labels: Mapping[str, str]) -> JobGpu:
    node = without_port(labels.get("instance", ""))
    return JobGpu(node, *(labels.get(name, "") for name in JobGpu._fields[1:]))


def _scale(series: TimeSeries, scale: float) -> TimeSeries:
    if scale == 1.0:
        return series
    points = [
        point._replace(low=point.low * scale, mean=point.mean * scale, high=point.high * scale)
        for point in series.points
    ]
    return series._replace(points=points)


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
        # Reports on the command line read curves as well, without a web server.
        from batchjob_stats_server.http.problems import Problem

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
