"""The metrics of jobs, and their families: the text formats need the samples metric by metric."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, groupby
from operator import attrgetter
from typing import Any

from batchjob.quantities.job import JOB_QUANTITIES
from batchjob.quantities.quantity import JOB_LABELS, Quantity
from batchjob.quantities.reading import JobReading
from collectors.jobs.view import INFO_LABELS, JobIdentity
from collectors.metric import Labels, Metric, MetricColumn, MetricFamily, label, labels, to_metric

# fmt: off
INFO = Metric("batchjob_job_info", "gauge",
    "Identity of the job; always 1.", (*JOB_LABELS, *INFO_LABELS))
JOBS = Metric("batchjob_jobs", "gauge", "Running jobs with processes on this node.", ("manager",))
IGNORED = Metric("batchjob_jobs_ignored", "gauge",
    "Jobs that are not exposed: beyond the maximum, claimed by several owners, or in a tree that "
    "belongs to a user.", ("reason",))
ERRORS = Metric("batchjob_job_read_errors_total", "counter",
    "Files of jobs, or of container engines (container_state), that could not be read, and "
    "processes that ended while no exporter ran (ended_unseen) or the helper was restarted "
    "(helper_restarted), whose last usage is in no sum, and jobs that began before the helper "
    "counted their network (helper_late).",
    ("reason",))
# fmt: on
METRICS = (
    JOBS,
    IGNORED,
    ERRORS,
    INFO,
    *dict.fromkeys(to_metric(quantity.metric) for quantity in JOB_QUANTITIES),
)

IdentifiedReading = tuple[JobIdentity, JobReading]
JobMetric = tuple[Metric, bool, list[tuple[Quantity, Labels]]]
"""A metric, whether finished jobs keep it, and its quantities with the labels of each."""


def job_metrics(groups: Collection[str]) -> list[JobMetric]:
    enabled = (q for q in JOB_QUANTITIES if not q.metric.group or q.metric.group in groups)
    return [
        (
            to_metric(metric),
            metric.outlives_job,
            [(q, labels(**dict(q.labels))) for q in quantities if q.read],
        )
        for metric, quantities in groupby(enabled, attrgetter("metric"))  # they are adjacent
    ]


def job_families(
    metrics: Sequence[JobMetric], jobs: Sequence[IdentifiedReading]
) -> list[MetricFamily]:
    """The families of these jobs; no two jobs may have the same labels."""
    running = [job for job in jobs if job[1].ended_at is None]
    managers = sorted(Counter(identity.name.manager for identity, _ in running).items())
    info = MetricColumn([identity.info for identity, _ in jobs], [1] * len(jobs))
    families = [
        MetricFamily(INFO, columns=lambda: [info]),
        MetricFamily(JOBS, [(label("manager", manager), number) for manager, number in managers]),
    ]
    of_all, of_running = _labels_and_readings(jobs), _labels_and_readings(running)
    for metric, outlives_job, quantities in metrics:
        shown = of_all if outlives_job else of_running
        families.append(MetricFamily(metric, columns=partial(_columns, quantities, *shown)))
    return families


def _labels_and_readings(
    jobs: Sequence[IdentifiedReading],
) -> tuple[list[Labels], list[JobReading]]:
    return [identity.name.labels for identity, _ in jobs], [reading for _, reading in jobs]


def _columns(
    quantities: Sequence[tuple[Quantity, Labels]],
    job_labels: Sequence[Labels],
    readings: Sequence[JobReading],
) -> Iterator[MetricColumn]:
    """The samples of each quantity; a value that is not known has none."""
    for quantity, shared_labels in quantities:
        assert quantity.read is not None
        values = list(map(quantity.read, readings))
        if quantity.group is not None:
            yield _grouped_column(quantity, job_labels, values)
            continue
        known_labels = job_labels
        if None in values:
            is_known = [value is not None for value in values]
            known_labels = list(compress(job_labels, is_known))
            values = list(compress(values, is_known))
        yield MetricColumn(known_labels, values, shared_labels)


def _grouped_column(
    quantity: Quantity, job_labels: Sequence[Labels], groups: Sequence[Mapping[str, Any] | None]
) -> MetricColumn:
    assert quantity.group is not None
    if not any(groups):
        return MetricColumn((), ())
    (name,) = quantity.group.labels
    entries = [
        (Labels(f"{own_labels},{label(name, key)}"), number)
        for own_labels, values in zip(job_labels, groups, strict=True)
        if values
        for key, value in values.items()
        if (number := quantity.read_each(value)) is not None
    ]
    return MetricColumn([each for each, _ in entries], [number for _, number in entries])
