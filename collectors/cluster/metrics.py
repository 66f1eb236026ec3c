"""The metric families of the cluster collector by part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchjob.schedulers.cluster import NativeMetric
from collectors.cluster.controller_metrics import CONTROLLER
from collectors.cluster.job_metrics import JOBS, WAIT, wait_families
from collectors.cluster.metric_types import ClusterMetric, counter, gauge
from collectors.cluster.node_metrics import DRAINING, NODES, UNAVAILABLE, condition_families
from collectors.cluster.sharing_metrics import FAIRSHARE, LICENSES, PARTITIONS, RESERVATIONS
from collectors.metric import Metric, MetricFamily, labels

PARTS: Mapping[str, tuple[ClusterMetric, ...]] = {
    "nodes": NODES,
    "jobs": JOBS,
    "controller": CONTROLLER,
    "partitions": PARTITIONS,
    "fairshare": FAIRSHARE,
    "licenses": LICENSES,
    "reservations": RESERVATIONS,
    "native": (),
}


def _native_families(reading: Sequence[NativeMetric]) -> Iterator[MetricFamily]:
    for name, help, samples in reading:
        metric = Metric(name, "gauge", help, tuple(samples[0][0]))
        yield MetricFamily(
            metric, [(labels(**label_values), value) for label_values, value in samples]
        )


_EXTRA_FAMILIES: Mapping[str, Callable[[Any], Iterator[MetricFamily]]] = {
    "nodes": condition_families,
    "jobs": wait_families,
    "native": _native_families,
}

INFO = gauge("info", "Scheduler that is queried; always 1.", "scheduler")
AGE = gauge("age_seconds", "Age of the last answer of the scheduler, by part.", "part")
ERRORS = counter("errors_total", "Failed queries of the scheduler, by part.", "part")
METRICS = (
    INFO,
    AGE,
    ERRORS,
    *(row.metric for rows in PARTS.values() for row in rows),
    UNAVAILABLE,
    DRAINING,
    WAIT,
)


def families(
    part: str, reading: Any, native: bool = True, users: bool = True
) -> Iterator[MetricFamily]:
    """The families of one part's reading.

    `native`: include Slurm's own metrics; `users`: include metrics that have a series for every
    user.
    """
    for row in PARTS[part]:
        if (row.native and not native) or (row.per_user and not users):
            continue
        samples = row.samples(reading)
        values = {label: float(number) for label, number in samples if number is not None}
        yield MetricFamily(row.metric, list(values.items()))
    if part in _EXTRA_FAMILIES:
        yield from _EXTRA_FAMILIES[part](reading)
