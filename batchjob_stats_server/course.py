"""A job's curves, from its history."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchjob_stats_db.history.history import Asked, Course, History, Kind, Span
from batchjob_stats_db.usage import Measured, node_of
from batchjob_stats_server.curves import Curve, Source

_HELD = "batchjob_job_gpu_info"


class Device(NamedTuple):
    """A GPU, or an instance of one, that the job had."""

    node: str
    gpu: str
    uuid: str
    gpu_instance: str


class Line(NamedTuple):
    """One line of a plot."""

    curve: Curve
    device: Device  # of which only `node` is set where it is no GPU's
    part: str
    course: Course

    @property
    def title(self) -> str:
        """What tells it from the others of its curve."""
        gpu = f"GPU {self.device.gpu}" if self.device.uuid else ""
        instance = self.device.gpu_instance
        return " ".join(word for word in (self.device.node, gpu, instance, self.part) if word)


def lines(
    history: History,
    job: Measured,
    curves: Sequence[Curve],
    stretches: int,
    known: Sequence[Device] = (),
) -> Iterator[Line]:
    """The lines of the curves, by node, GPU and part; raises HistoryError.

    `known`: the job's GPUs, where the history does not tell which it held.
    """
    devices: Sequence[Device] | None = None
    for curve in curves:
        for source in curve.sources:
            if source.of_gpu and devices is None:
                devices = held(history, job) or known
            found = (
                _of_gpus(history, job.span, source, stretches, devices or ())
                if source.of_gpu
                else _of_job(history, job, source, stretches)
            )
            made = [
                Line(curve, device, part, _scaled(course, source.scale))
                for device, part, course in found
                if course.points
            ]
            if made:
                yield from sorted(made, key=lambda line: (*line.device, line.part))
                break


def held(history: History, job: Measured) -> list[Device]:
    """The GPUs that the job was seen to have."""
    asked = Asked(_HELD, Kind.GAUGE, {"jobid": [job.jobid]})
    found = history.courses(asked, job.span, 1)
    return sorted({_device(course.labels) for course in found if _own(job, course.labels)})


def _of_job(
    history: History, job: Measured, source: Source, stretches: int
) -> Iterator[tuple[Device, str, Course]]:
    where = {"jobid": [job.jobid], **{label: [value] for label, value in source.where}}
    asked = Asked(source.metric, source.kind, where, source.summed)
    for course in history.courses(asked, job.span, stretches):
        if _own(job, course.labels):
            yield _device(course.labels), course.labels.get(source.part, ""), course


def _of_gpus(
    history: History, span: Span, source: Source, stretches: int, devices: Sequence[Device]
) -> Iterator[tuple[Device, str, Course]]:
    """Series of whole GPUs, which say nothing of jobs: DCGM calls the label `UUID`."""
    label = "UUID" if source.metric.startswith("DCGM_") else "uuid"
    by_uuid = {(each.uuid, each.gpu_instance): each for each in devices if each.uuid}
    if not by_uuid:
        return
    asked = Asked(source.metric, source.kind, {label: sorted({uuid for uuid, _ in by_uuid})})
    for course in history.courses(asked, span, stretches):
        instance = course.labels.get("gpu_instance", course.labels.get("GPU_I_ID", ""))
        device = by_uuid.get((course.labels[label], instance))
        if device:
            yield device, "", course


def _own(job: Measured, labels: Mapping[str, str]) -> bool:
    """Not of somebody else who had this job id; without a name the exporter writes the uid."""
    return labels.get("user", "") in {user for user in (job.user, str(job.uid or "")) if user}


def _device(labels: Mapping[str, str]) -> Device:
    node = node_of(labels.get("instance", ""))
    return Device(node, *(labels.get(name, "") for name in Device._fields[1:]))


def _scaled(course: Course, scale: float) -> Course:
    if scale == 1.0:
        return course
    points = [
        point._replace(low=point.low * scale, mean=point.mean * scale, high=point.high * scale)
        for point in course.points
    ]
    return course._replace(points=points)


def devices_of(rows: Sequence[Mapping[Any, Any]]) -> list[Device]:
    """The GPUs of a job as its usage has them."""
    return [Device(*(row[name] for name in Device._fields)) for row in rows]
