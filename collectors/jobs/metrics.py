"""The quantities of jobs as metrics, and the metrics about jobs as a whole."""

from collections.abc import Collection, Iterable
from itertools import groupby

from batchjob.quantities.job import JOB_QUANTITIES
from batchjob.quantities.quantity import JOB_LABELS, ExportedMetric, Quantity
from collectors.jobs.state.job_identity import INFO_LABELS
from collectors.metric import Metric, to_metric

INFO = Metric(
    "batchjob_job_info",
    "gauge",
    "Identity of the job; always 1.",
    (*JOB_LABELS, *INFO_LABELS),
)
JOBS = Metric("batchjob_jobs", "gauge", "Running jobs with processes on this node.", ("manager",))
IGNORED = Metric(
    "batchjob_jobs_ignored",
    "gauge",
    "Jobs that are not exposed: beyond the maximum, claimed by several owners, or in "
    "a tree that belongs to a user.",
    ("reason",),
)
ERRORS = Metric(
    "batchjob_job_read_errors_total",
    "counter",
    "Files of jobs that could not be read, and processes that ended while no exporter ran "
    "(ended_unseen), whose last usage is in no sum.",
    ("reason",),
)


def by_metric(
    quantities: Iterable[Quantity],
) -> list[tuple[ExportedMetric, tuple[Quantity, ...]]]:
    """Each metric with its quantities, which are adjacent in the table."""
    return [
        (metric, tuple(group))
        for metric, group in groupby(quantities, lambda quantity: quantity.metric)
    ]


METRICS = (
    JOBS,
    IGNORED,
    ERRORS,
    INFO,
    *(to_metric(metric) for metric, _ in by_metric(JOB_QUANTITIES)),
)


def enabled_quantities(groups: Collection[str]) -> tuple[Quantity, ...]:
    """The quantities of the enabled groups of metrics."""
    return tuple(
        quantity
        for quantity in JOB_QUANTITIES
        if not quantity.metric.group or quantity.metric.group in groups
    )
