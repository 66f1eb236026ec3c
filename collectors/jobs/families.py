"""Families of all jobs, metric by metric, as the text formats require."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import compress
from operator import itemgetter
from typing import Any, NamedTuple

from batchjob.quantities.quantity import Quantity
from batchjob.quantities.reading import JobReading
from collectors.jobs.metrics import INFO, JOBS, by_metric
from collectors.jobs.state.job_identity import JobIdentity
from collectors.metric import (
    NO_LABELS,
    Labels,
    Metric,
    MetricColumn,
    MetricColumns,
    MetricFamily,
    exported,
    join,
    labels,
)

IdentifiedReading = tuple[JobIdentity, JobReading]


class LabelledReadings(NamedTuple):
    """Jobs' labels and, in the same order, their readings."""

    labels: Sequence[Labels]
    readings: Sequence[JobReading]


_Read = Callable[[JobReading], Any]
_Column = Callable[[LabelledReadings], MetricColumn]
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

    def of(self, jobs: Sequence[IdentifiedReading]) -> list[MetricFamily]:
        """The families of these jobs, no two of which have the same labels."""
        running = [job for job in jobs if job[1].ended_at is None]
        every, live = _labelled_readings(jobs), _labelled_readings(running)
        info = [(join(identity.name.labels, identity.info), 1) for identity, _ in jobs]
        return [
            MetricFamily(INFO, info, distinct=True),
            _count(Counter(identity.name.manager for identity, _ in running)),
            *(
                self._family(metric, JobColumns(columns, every if lasting else live))
                for metric, lasting, columns in self._metrics
            ),
        ]

    def _family(self, metric: Metric, samples: "JobColumns") -> MetricFamily:
        created = samples.created() if self._created and metric.type == "counter" else None
        return MetricFamily(metric, samples, distinct=True, created=created)


class JobColumns(MetricColumns):
    """The samples of one metric."""

    __slots__ = ("_columns", "_jobs")

    def __init__(self, columns: Sequence[_Column], jobs: LabelledReadings) -> None:
        self._columns = columns
        self._jobs = jobs

    def columns(self) -> Iterator[MetricColumn]:
        """See MetricColumns."""
        return (column(self._jobs) for column in self._columns)

    def created(self) -> dict[Labels, float]:
        """The time at which each sample was 0: its job's start."""
        return {
            of: began
            for own, reading in zip(*self._jobs, strict=True)
            if (began := reading.started_at) is not None
            for of, _ in JobColumns(self._columns, LabelledReadings([own], [reading]))
        }


def _labelled_readings(jobs: Sequence[IdentifiedReading]) -> LabelledReadings:
    return LabelledReadings(
        [identity.name.labels for identity, _ in jobs], [reading for _, reading in jobs]
    )


def _column(quantity: Quantity, read: _Read) -> _Column:
    if quantity.group is not None:
        (label,) = quantity.group.labels
        return partial(_several, read, quantity.of_each, label)
    return partial(_single, read, labels(**dict(quantity.labels)))


def _single(read: _Read, more: Labels, jobs: LabelledReadings) -> MetricColumn:
    values = list(map(read, jobs.readings))
    if None not in values:
        return MetricColumn(jobs.labels, more, values)
    known = [value is not None for value in values]
    return MetricColumn(list(compress(jobs.labels, known)), more, list(compress(values, known)))


def _several(
    read: _Read, of_each: Callable[[Any], float], label: str, jobs: LabelledReadings
) -> MetricColumn:
    told = list(map(read, jobs.readings))
    if not any(told):
        return MetricColumn((), NO_LABELS, ())
    found = [
        (own, name, value)
        for own, values in zip(jobs.labels, told, strict=True)
        if values
        for name, value in values.items()
    ]
    of = [Labels(f"{own},{_label(label, name)}") for own, name, _ in found]
    return MetricColumn(of, NO_LABELS, [of_each(value) for _, _, value in found])


@lru_cache(1000)  # shared by jobs; bounded, because jobs can create interfaces
def _label(label: str, value: str) -> Labels:
    return labels(**{label: value})


def _count(jobs: Counter[str]) -> MetricFamily:
    by_manager = sorted(jobs.items(), key=itemgetter(0))
    return MetricFamily(JOBS, [(labels(manager=manager), n) for manager, n in by_manager])
