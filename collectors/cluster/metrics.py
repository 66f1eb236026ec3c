"""The metric families of the cluster collector by part, and those of shared resources.

The latter are partitions, fair share, licences and reservations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchjob.schedulers.cluster import FairShare, License, NativeMetric, Partition, Reservation
from collectors.cluster.controller_metrics import CONTROLLER
from collectors.cluster.job_metrics import JOBS, WAIT, wait_families
from collectors.cluster.metric_types import ClusterMetric, Samples, counter, gauge
from collectors.cluster.node_metrics import DRAINING, NODES, UNAVAILABLE, condition_families
from collectors.metric import Metric, MetricFamily, labels


def _samples(name: str, key: str, value: Callable[[Any], float | None]) -> Callable[..., Samples]:
    return lambda readings: (
        (labels(**{name: str(getattr(item, key))}), value(item)) for item in readings
    )


def _share(name: str, help: str, value: Callable[[FairShare], float | None]) -> ClusterMetric:
    return ClusterMetric(gauge(name, help, "account"), _samples("account", "account", value))


def _license(name: str, help: str, value: Callable[[License], float | None]) -> ClusterMetric:
    return ClusterMetric(gauge(name, help, "license"), _samples("license", "name", value))


def _reservation(
    name: str, help: str, value: Callable[[Reservation], float | None]
) -> ClusterMetric:
    return ClusterMetric(gauge(name, help, "reservation"), _samples("reservation", "name", value))


FAIRSHARE = (
    _share("account_shares_ratio", "Share of the account among its siblings.", lambda s: s.shares),
    _share(
        "account_usage_ratio",
        "Fraction of the parent account's decayed usage that is due to the account.",
        lambda s: s.usage,
    ),
    _share(
        "account_fairshare_level",
        "Shares divided by usage (Fair Tree, PBS): above 1 the account has used less than its"
        " share.",
        lambda s: s.level,
    ),
    _share(
        "account_fairshare_ratio",
        "Fair-share factor of the account, if the scheduler computes one for accounts.",
        lambda s: s.factor,
    ),
)
LICENSES = (
    _license("licenses", "Configured licences.", lambda item: item.total),
    _license("licenses_used", "Licences in use by jobs.", lambda item: item.used),
    _license("licenses_free", "Licences available to jobs.", lambda item: item.free),
    _license("licenses_reserved", "Reserved licences.", lambda item: item.reserved),
)
RESERVATIONS = (
    _reservation("reservation_nodes", "Nodes in the reservation.", lambda item: item.nodes),
    _reservation("reservation_cores", "Cores in the reservation.", lambda item: item.cores),
    _reservation(
        "reservation_start_time_seconds",
        "Start of the reservation, in Unix time.",
        lambda r: r.start,
    ),
    _reservation(
        "reservation_end_time_seconds", "End of the reservation, in Unix time.", lambda r: r.end
    ),
)


def _partition(name: str, help: str, value: Callable[[Partition], float | None]) -> ClusterMetric:
    return ClusterMetric(gauge(name, help, "partition"), _samples("partition", "name", value))


PARTITIONS = (
    _partition(
        "partition_accepts_jobs",
        "1 if the partition or queue accepts new jobs, else 0.",
        lambda item: item.accepts_jobs,
    ),
    _partition(
        "partition_starts_jobs",
        "1 if the partition or queue starts jobs, else 0.",
        lambda item: item.starts_jobs,
    ),
    _partition(
        "partition_cpus_limit",
        "Maximum number of CPUs (LSF: job slots) allocated to jobs of the queue.",
        lambda item: item.cpus_limit,
    ),
)

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
