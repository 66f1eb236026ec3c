"""A job's curves, from its measurements."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from batchjob.quantities.curves import Curve, CurveSource
from batchjob.quantities.gpu import JOB_GPU_INFO
from batchjob.quantities.quantity import SeriesKind
from batchjob_stats_db.measure.job_usage import JobToMeasure, named_instances, node_of, users_of
from batchjob_stats_db.timeseries.base import (
    JobWindow,
    Point,
    SeriesQuery,
    TimeSeries,
    TimeSeriesStore,
)

_HELD = JOB_GPU_INFO.name


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
    course: TimeSeries

    @property
    def title(self) -> str:
        """What distinguishes it from the other lines of its curve."""
        gpu = f"GPU {self.device.gpu}" if self.device.uuid else ""
        instance = self.device.gpu_instance
        return " ".join(word for word in (self.device.node, gpu, instance, self.part) if word)


def lines(
    history: TimeSeriesStore, job: JobToMeasure, curves: Sequence[Curve], stretches: int
) -> Iterator[JobSeries]:
    """The lines of the curves, by node, GPU and part; raises TimeSeriesError."""
    devices: Sequence[JobGpu] | None = None
    for curve in curves:
        for source in curve.sources:
            if source.of_gpu and devices is None:
                devices = confirmed_gpus(history, job)
            found = (
                _of_gpus(history, job.span, source, stretches, devices or ())
                if source.of_gpu
                else _of_job(history, job, source, stretches)
            )
            made = [
                JobSeries(curve, device, part, _scaled(course, source.scale))
                for device, part, course in found
                if course.points
            ]
            if made:
                yield from sorted(made, key=lambda line: (*line.device, line.part))
                break


def aggregated(found: Sequence[JobSeries]) -> list[JobSeries]:
    """One line for each curve and part: minimum, median and maximum of its nodes and GPUs."""
    groups: dict[tuple[str, str], list[JobSeries]] = {}
    for line in found:
        groups.setdefault((line.curve.name, line.part), []).append(line)
    return [
        JobSeries(lines[0].curve, _ALL_DEVICES, part, _band([line.course for line in lines]))
        for (_, part), lines in groups.items()
    ]


def _band(courses: Sequence[TimeSeries]) -> TimeSeries:
    seen: dict[float, list[Point]] = {}
    for course in courses:
        for point in course.points:
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
    asked = SeriesQuery(_HELD, SeriesKind.GAUGE, {"jobid": [job.jobid], "confirmed": ["true"]})
    found = history.courses(asked, job.span, 1)
    return sorted({_device(course.labels) for course in _own(job, found)})


def _of_job(
    history: TimeSeriesStore, job: JobToMeasure, source: CurveSource, stretches: int
) -> Iterator[tuple[JobGpu, str, TimeSeries]]:
    where = {"jobid": [job.jobid], **{label: [value] for label, value in source.where}}
    asked = SeriesQuery(source.metric, source.kind, where, source.summed)
    for course in _own(job, history.courses(asked, job.span, stretches)):
        yield _device(course.labels), course.labels.get(source.part, ""), course


def _of_gpus(
    history: TimeSeriesStore,
    span: JobWindow,
    source: CurveSource,
    stretches: int,
    devices: Sequence[JobGpu],
) -> Iterator[tuple[JobGpu, str, TimeSeries]]:
    """Series of whole GPUs, which are not labelled by job: DCGM's label is `UUID`."""
    label = "UUID" if source.metric.startswith("DCGM_") else "uuid"
    by_uuid = {(each.uuid, each.gpu_instance): each for each in devices if each.uuid}
    if not by_uuid:
        return
    asked = SeriesQuery(source.metric, source.kind, {label: sorted({uuid for uuid, _ in by_uuid})})
    for course in history.courses(asked, span, stretches):
        instance = course.labels.get("gpu_instance", course.labels.get("GPU_I_ID", ""))
        device = by_uuid.get((course.labels[label], instance))
        if device:
            yield device, "", course


def _own(job: JobToMeasure, found: Iterable[TimeSeries]) -> list[TimeSeries]:
    """The series of this job, not those of another user who had its id."""
    courses = list(found)
    users, named = users_of(job), named_instances(course.labels for course in courses)
    return [
        course
        for course in courses
        if (user := course.labels.get("user", "")) in users
        or (not user and course.labels.get("instance", "") not in named)
    ]


def _device(labels: Mapping[str, str]) -> JobGpu:
    node = node_of(labels.get("instance", ""))
    return JobGpu(node, *(labels.get(name, "") for name in JobGpu._fields[1:]))


def _scaled(course: TimeSeries, scale: float) -> TimeSeries:
    if scale == 1.0:
        return course
    points = [
        point._replace(low=point.low * scale, mean=point.mean * scale, high=point.high * scale)
        for point in course.points
    ]
    return course._replace(points=points)
