"""The families of all jobs; the text formats require the samples metric by metric."""

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
    join,
    labels,
    to_metric,
)

IdentifiedReading = tuple[JobIdentity, JobReading]


class LabelledReadings(NamedTuple):
    """Jobs' labels and, in the same order, their readings."""

    labels: Sequence[Labels]
    readings: Sequence[JobReading]


_ReadQuantity = Callable[[JobReading], Any]
_ReadColumn = Callable[[LabelledReadings], MetricColumn]
"""Returns the samples of one quantity, of all jobs."""


class JobFamilies:
    """Builds the families from readings."""

    def __init__(self, quantities: Sequence[Quantity], created: bool = False) -> None:
        """`created`: add the start time of the job to each of its counters."""
        self._created = created
        self._metrics: list[tuple[Metric, bool, list[_ReadColumn]]] = [
            (to_metric(metric), metric.outlives_job, [_column(q, q.read) for q in group if q.read])
            for metric, group in by_metric(quantities)
        ]

    def build(self, jobs: Sequence[IdentifiedReading]) -> list[MetricFamily]:
        """The families of these jobs; no two jobs may have the same labels."""
        running = [job for job in jobs if job[1].ended_at is None]
        all_jobs, running_jobs = _labelled_readings(jobs), _labelled_readings(running)
        info = [(join(identity.name.labels, identity.info), 1) for identity, _ in jobs]
        return [
            MetricFamily(INFO, info, distinct=True),
            _running_jobs(Counter(identity.name.manager for identity, _ in running)),
            *(
                self._family(
                    metric, JobColumns(columns, all_jobs if outlives_job else running_jobs)
                )
                for metric, outlives_job, columns in self._metrics
            ),
        ]

    def _family(self, metric: Metric, samples: "JobColumns") -> MetricFamily:
        created = samples.created() if self._created and metric.type == "counter" else None
        return MetricFamily(metric, samples, distinct=True, created=created)


class JobColumns(MetricColumns):
    """The samples of one metric."""

    __slots__ = ("_columns", "_jobs")

    def __init__(self, columns: Sequence[_ReadColumn], jobs: LabelledReadings) -> None:
        self._columns = columns
        self._jobs = jobs

    def columns(self) -> Iterator[MetricColumn]:
        """See MetricColumns."""
        return (column(self._jobs) for column in self._columns)

    def created(self) -> dict[Labels, float]:
        """The time at which each sample was 0: its job's start."""
        return {
            sample_labels: started_at
            for job_labels, reading in zip(*self._jobs, strict=True)
            if (started_at := reading.started_at) is not None
            for sample_labels, _ in JobColumns(
                self._columns, LabelledReadings([job_labels], [reading])
            )
        }


def _labelled_readings(jobs: Sequence[IdentifiedReading]) -> LabelledReadings:
    return LabelledReadings(
        [identity.name.labels for identity, _ in jobs], [reading for _, reading in jobs]
    )


def _column(quantity: Quantity, read: _ReadQuantity) -> _ReadColumn:
    if quantity.group is not None:
        (label,) = quantity.group.labels
        return partial(_grouped_column, read, quantity.read_each, label)
    return partial(_plain_column, read, labels(**dict(quantity.labels)))


def _plain_column(
    read: _ReadQuantity, shared_labels: Labels, jobs: LabelledReadings
) -> MetricColumn:
    values = list(map(read, jobs.readings))
    if None not in values:
        return MetricColumn(jobs.labels, shared_labels, values)
    is_known = [value is not None for value in values]
    return MetricColumn(
        list(compress(jobs.labels, is_known)), shared_labels, list(compress(values, is_known))
    )


def _grouped_column(
    read: _ReadQuantity, of_each: Callable[[Any], float], label: str, jobs: LabelledReadings
) -> MetricColumn:
    groups = list(map(read, jobs.readings))
    if not any(groups):
        return MetricColumn((), NO_LABELS, ())
    entries = [
        (job_labels, name, value)
        for job_labels, values in zip(jobs.labels, groups, strict=True)
        if values
        for name, value in values.items()
    ]
    sample_labels = [
        Labels(f"{job_labels},{_label(label, name)}") for job_labels, name, _ in entries
    ]
    return MetricColumn(sample_labels, NO_LABELS, [of_each(value) for _, _, value in entries])


@lru_cache(1000)  # shared by jobs; bounded, because jobs can create interfaces
def _label(label: str, value: str) -> Labels:
    return labels(**{label: value})


def _running_jobs(jobs: Counter[str]) -> MetricFamily:
    by_manager = sorted(jobs.items(), key=itemgetter(0))
    return MetricFamily(JOBS, [(labels(manager=manager), n) for manager, n in by_manager])
