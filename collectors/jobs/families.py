"""Families of all jobs, metric by metric, as the text formats demand."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, overload

from batchjob.quantities.quantity import Quantity
from batchjob.quantities.reading import JobReading
from collectors.jobs.metrics import INFO, JOBS, by_metric
from collectors.jobs.state.job_identity import JobIdentity
from collectors.metric import Labels, Metric, MetricFamily, Sample, exported, join, labels

IdentifiedReading = tuple[JobIdentity, JobReading]


class LabelledReading(NamedTuple):
    """A job's reading, beside the labels of all its samples and those of its info."""

    labels: Labels
    info: Labels
    reading: JobReading


_Read = Callable[[JobReading], Any]
_Column = Callable[[Sequence[LabelledReading]], list[Sample]]
"""The samples of one quantity, of all jobs."""


class JobFamilies:
    """Makes families of readings."""

    def __init__(self, quantities: Sequence[Quantity], created: bool = False) -> None:
        """`created`: say of each counter when its job began."""
        self._created = created
        self._metrics: list[tuple[Metric, bool, list[_Column]]] = [
            (exported(metric), metric.outlives_job, [_column(q, q.read) for q in group if q.read])
            for metric, group in by_metric(quantities)
        ]

    def of(self, readings: Sequence[IdentifiedReading]) -> list[MetricFamily]:
        """The families of these jobs, no two of which have the same labels."""
        jobs = [LabelledReading(i.name.labels, i.info, reading) for i, reading in readings]
        running = [job for job in jobs if job.reading.ended_at is None]
        managers = (i.name.manager for i, reading in readings if reading.ended_at is None)
        return [
            self._family(INFO, JobColumns([_info], jobs)),
            _count(Counter(managers)),
            *(
                self._family(metric, JobColumns(columns, jobs if lasting else running))
                for metric, lasting, columns in self._metrics
            ),
        ]

    def _family(self, metric: Metric, samples: "JobColumns") -> MetricFamily:
        created = samples.created() if self._created and metric.type == "counter" else None
        return MetricFamily(metric, samples, distinct=True, created=created)


class JobColumns(Sequence[Sample]):
    """The samples of one metric, made when somebody goes through them.

    Those of all metrics at once would be most of the exporter's memory.
    """

    __slots__ = ("_columns", "_jobs")

    def __init__(self, columns: Sequence[_Column], jobs: Sequence[LabelledReading]) -> None:
        self._columns = columns
        self._jobs = jobs

    def __iter__(self) -> Iterator[Sample]:
        return chain.from_iterable(column(self._jobs) for column in self._columns)

    def __len__(self) -> int:
        return sum(len(column(self._jobs)) for column in self._columns)

    @overload
    def __getitem__(self, at: int) -> Sample: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Sample]: ...
    def __getitem__(self, at: int | slice) -> Sample | Sequence[Sample]:
        return list(self)[at]

    def created(self) -> dict[Labels, float]:
        """When each sample was 0: at its job's start."""
        return {
            of: began
            for job in self._jobs
            if (began := job.reading.started_at) is not None
            for column in self._columns
            for of, _ in column([job])
        }


def _column(quantity: Quantity, read: _Read) -> _Column:
    if quantity.group is not None:
        (label,) = quantity.group.labels
        return partial(_several, read, quantity.of_each, label)
    if quantity.labels:
        return partial(_labelled, read, labels(**dict(quantity.labels)))
    return partial(_plain, read)


def _info(jobs: Sequence[LabelledReading]) -> list[Sample]:
    return [(join(own, info), 1) for own, info, _ in jobs]


def _plain(read: _Read, jobs: Sequence[LabelledReading]) -> list[Sample]:
    return [(own, value) for own, _, reading in jobs if (value := read(reading)) is not None]


def _labelled(read: _Read, more: Labels, jobs: Sequence[LabelledReading]) -> list[Sample]:
    return [
        (Labels(f"{own},{more}"), value)
        for own, _, reading in jobs
        if (value := read(reading)) is not None
    ]


def _several(
    read: _Read, of_each: Callable[[Any], float], label: str, jobs: Sequence[LabelledReading]
) -> list[Sample]:
    return [
        (Labels(f"{own},{_label(label, name)}"), of_each(value))
        for own, _, reading in jobs
        for name, value in (read(reading) or {}).items()
    ]


@lru_cache(1000)  # jobs have the same devices, or as many as they make interfaces
def _label(label: str, value: str) -> Labels:
    return labels(**{label: value})


def _count(jobs: Counter[str]) -> MetricFamily:
    by_manager = sorted(jobs.items(), key=itemgetter(0))
    return MetricFamily(JOBS, [(labels(manager=manager), n) for manager, n in by_manager])
