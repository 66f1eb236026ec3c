"""The metric families of the cluster collector by part, and those of shared resources.

The latter are fair share and licences.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from batchjob.schedulers.cluster import Controller, NativeMetric, Rpc
from collectors.cluster.job_metrics import JOBS, WAIT, wait_families
from collectors.cluster.metric_types import ClusterMetric, Row, counter, gauge, own_metric
from collectors.cluster.node_metrics import DRAINING, NODES, UNAVAILABLE, condition_families
from collectors.metric import Labels, Metric, MetricFamily, labels

_ControllerRows = Callable[[Controller], Iterable[Row]]


def _value(name: str) -> _ControllerRows:
    return lambda controller: ((controller.numbers.get(name),),)


def _per_scheduler(name: str) -> _ControllerRows:
    return lambda controller: (
        (scheduler, controller.numbers.get(f"{scheduler}_{name}"))
        for scheduler in ("main", "backfill")
    )


def _rpcs(kind: Literal["type", "user"], value: Callable[[Rpc], float | None]) -> _ControllerRows:
    return lambda controller: (
        (key, value(rpc))
        for key, rpc in (controller.by_type if kind == "type" else controller.by_user).items()
    )


def _jobs_by_event(controller: Controller) -> Iterable[Row]:
    names = (
        "submitted", "started", "completed", "cancelled", "failed", "backfilled",
        "backfilled_since_reset", "backfilled_heterogeneous",
    )  # fmt: skip
    return ((name, controller.numbers.get(name)) for name in names)


_SINCE_RESET = "since the controller's statistics were reset."
# fmt: off
CONTROLLER = (
    gauge("controller_threads", _value("threads"), "Threads of slurmctld that process RPCs."),
    gauge("controller_agents", _value("agents"),
        "Agents of slurmctld that send messages to nodes."),
    gauge("controller_agent_queue", _value("agent_queue"), "Queued messages to nodes."),
    gauge("controller_database_queue", _value("dbd_queue"),
        "Queued messages to the accounting database."),
    counter("controller_jobs_total", _jobs_by_event,
        f"Jobs by event, {_SINCE_RESET} Slurm counts jobs that failed as completed; failed are "
        "only those that it could not run. backfilled and backfilled_heterogeneous (components) "
        "are since slurmctld started.", "event"),
    counter("controller_cycles_total", _per_scheduler("cycles"),
        f"Cycles of a scheduler, {_SINCE_RESET}", "scheduler"),
    gauge("controller_last_cycle_seconds", _per_scheduler("last"),
        "Duration of the last cycle.", "scheduler"),
    gauge("controller_longest_cycle_seconds", _per_scheduler("longest"),
        f"Duration of the longest cycle, {_SINCE_RESET}", "scheduler"),
    gauge("controller_mean_cycle_seconds", _per_scheduler("mean"),
        f"Mean duration of a cycle, {_SINCE_RESET}", "scheduler"),
    gauge("controller_queue", _per_scheduler("queue"),
        "Length of the queue at the last cycle.", "scheduler"),
    gauge("controller_backfill_depth", _value("backfill_depth"),
        "Jobs considered in the last backfill cycle."),
    gauge("controller_backfill_mean_depth", _value("backfill_mean_depth"),
        f"Mean number of jobs considered in a backfill cycle, {_SINCE_RESET}"),
    counter("rpc_calls_total", _rpcs("type", lambda rpc: rpc.calls),
        f"RPCs processed by the controller by type, {_SINCE_RESET}", "type"),
    counter("rpc_seconds_total", _rpcs("type", lambda rpc: rpc.seconds),
        f"Time the controller spent on RPCs by type, {_SINCE_RESET}", "type"),
    counter("rpc_user_calls_total", _rpcs("user", lambda rpc: rpc.calls),
        f"RPCs by calling user, {_SINCE_RESET}", "user"),
    counter("rpc_user_seconds_total", _rpcs("user", lambda rpc: rpc.seconds),
        f"Time the controller spent on RPCs by calling user, {_SINCE_RESET}", "user"),
)
# fmt: on


def _row(
    label: str, name: str, value: Callable[[Any], float | None], help: str, key: str = "name"
) -> ClusterMetric:
    """A gauge with a sample for each item; the attribute `key` names the item."""

    def rows(items: Sequence[Any]) -> Iterable[Row]:
        return ((getattr(item, key), value(item)) for item in items)

    return gauge(name, rows, help, label)


_account = partial(_row, "account", key="account")
_license = partial(_row, "license")

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
)
# fmt: on

PARTS: Mapping[str, tuple[ClusterMetric, ...]] = {
    "nodes": NODES,
    "jobs": JOBS,
    "controller": CONTROLLER,
    "fairshare": FAIRSHARE,
    "licenses": LICENSES,
    "slurmctld": (),
}


def _native_families(reading: Mapping[str, NativeMetric]) -> Iterator[MetricFamily]:
    for name, (help, samples) in reading.items():
        own = [(Labels(text), number) for text, number in samples.items()]
        yield MetricFamily(Metric(name, "gauge", help), own)


_EXTRA_FAMILIES: Mapping[str, Callable[[Any], Iterator[MetricFamily]]] = {
    "nodes": condition_families,
    "jobs": wait_families,
    "slurmctld": _native_families,
}

INFO = own_metric("info", "gauge", "Scheduler that is queried; always 1.", "scheduler")
AGE = own_metric(
    "age_seconds", "gauge", "Age of the last answer of the scheduler, by part.", "part"
)
ERRORS = own_metric("errors_total", "counter", "Failed queries of the scheduler, by part.", "part")
DAMAGED = own_metric(
    "damaged_values",
    "gauge",
    "Names that stood twice in the scheduler's last answer, and so have no value, by part.",
    "part",
)
METRICS = (
    INFO, AGE, ERRORS, DAMAGED, *(row.metric for rows in PARTS.values() for row in rows),
    UNAVAILABLE, DRAINING, WAIT,
)  # fmt: skip


def families(part: str, reading: Any, users: bool = True) -> Iterator[MetricFamily]:
    """The families of one part's reading; `users`: those with a series for every user as well."""
    for row in PARTS[part]:
        if row.per_user and not users:
            continue
        values = {
            labels(**dict(zip(row.metric.labels, map(str, own), strict=True))): float(number)
            for *own, number in row.rows(reading)
            if number is not None
        }
        yield MetricFamily(row.metric, list(values.items()))
    if part in _EXTRA_FAMILIES:
        yield from _EXTRA_FAMILIES[part](reading)
