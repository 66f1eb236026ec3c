"""Metric families about shared resources: partitions, fair share, licences, reservations."""

from collections.abc import Callable
from typing import Any

from batchjob.schedulers.cluster import FairShare, License, Partition, Reservation
from collectors.cluster.metric_types import ClusterMetric, Samples, gauge
from collectors.metric import labels


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
