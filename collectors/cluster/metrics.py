"""The metric families of the cluster collector by part, and those of shared resources.

The latter are partitions, fair share and licences.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from batchjob.schedulers.cluster import NativeMetric
from collectors.cluster.controller_metrics import CONTROLLER
from collectors.cluster.job_metrics import JOBS, WAIT, wait_families
from collectors.cluster.metric_types import ClusterMetric, Samples, gauge, own_metric
from collectors.cluster.node_metrics import DRAINING, NODES, UNAVAILABLE, condition_families
from collectors.metric import Metric, MetricFamily, labels


def _row(
    label: str, name: str, value: Callable[[Any], float | None], help: str, key: str = "name"
) -> ClusterMetric:
    """A gauge with a sample for each item; the attribute `key` names the item."""

    def samples(items: Sequence[Any]) -> Samples:
        return ((labels(**{label: str(getattr(item, key))}), value(item)) for item in items)

    return gauge(name, samples, help, label)


_account = partial(_row, "account", key="account")
_license = partial(_row, "license")
_partition = partial(_row, "partition")

# fmt: off
FAIRSHARE = (
    _account("account_shares_ratio", lambda row: row.shares,
        "Share of the account among its siblings."),
    _account("account_usage_ratio", lambda row: row.usage,
        "Fraction of the parent account's decayed usage that is due to the account."),
    _account("account_fairshare_level", lambda row: row.level,
        "Shares divided by usage (Fair Tree): above 1 the account has used less than its "
        "share."),
    _account("account_fairshare_ratio", lambda row: row.factor,
        "Fair-share factor of the account, if the scheduler computes one for accounts."),
)
LICENSES = (
    _license("licenses", lambda row: row.total, "Configured licences."),
    _license("licenses_used", lambda row: row.used, "Licences in use by jobs."),
    _license("licenses_free", lambda row: row.free, "Licences available to jobs."),
    _license("licenses_reserved", lambda row: row.reserved, "Reserved licences."),
)
PARTITIONS = (
    _partition("partition_accepts_jobs", lambda row: row.accepts_jobs,
        "1 if the partition or queue accepts new jobs, else 0."),
    _partition("partition_starts_jobs", lambda row: row.starts_jobs,
        "1 if the partition or queue starts jobs, else 0."),
    _partition("partition_cpus_limit", lambda row: row.cpus_limit,
        "Maximum number of CPUs (LSF: job slots) allocated to jobs of the queue."),
)
# fmt: on

PARTS: Mapping[str, tuple[ClusterMetric, ...]] = {
    "nodes": NODES,
    "jobs": JOBS,
    "controller": CONTROLLER,
    "partitions": PARTITIONS,
    "fairshare": FAIRSHARE,
    "licenses": LICENSES,
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

INFO = own_metric("info", "gauge", "Scheduler that is queried; always 1.", "scheduler")
AGE = own_metric(
    "age_seconds", "gauge", "Age of the last answer of the scheduler, by part.", "part"
)
ERRORS = own_metric("errors_total", "counter", "Failed queries of the scheduler, by part.", "part")
DAMAGED = own_metric(
    "damaged_values", "gauge",
    "Names that stood twice in the scheduler's last answer, and so have no value, by part.", "part",
)  # fmt: skip
METRICS = (
    INFO, AGE, ERRORS, DAMAGED, *(row.metric for rows in PARTS.values() for row in rows),
    UNAVAILABLE, DRAINING, WAIT,
)  # fmt: skip


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
