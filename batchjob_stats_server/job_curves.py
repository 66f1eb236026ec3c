"""A job's curves, from its measurements."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from batchjob.quantities.curves import Curve, CurveSource
from batchjob.quantities.gpu import JOB_GPU_INFO
from batchjob.quantities.quantity import SeriesKind
from batchjob.schedulers.node_names import without_port
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
    return TimeSeries(
        {},
        [
            Point(
                time,
                min(point.low for point in points),
                median(point.mean for point in points),
                max(point.high for point in points),
            )
            for time, points in sorted(seen.items())
        ],
    )


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
    if job.returned:
        all_series = [_while_allocated(job, each) for each in all_series]
    users, named = user_labels(job), instances_with_user(series.labels for series in all_series)
    return [
        series
        for series in all_series
        if (user := series.labels.get("user", "")) in users
        or (not user and series.labels.get("instance", "") not in named)
    ]


def _while_allocated(job: JobToMeasure, series: TimeSeries) -> TimeSeries:
    """The series up to when the job gave its node back."""
    until = returned_at(job, series.labels.get("instance", ""))
    if until is None:
        return series
    return series._replace(points=[point for point in series.points if point.time <= until])


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
