"""Metric families about the controller's own work."""

from collections.abc import Callable, Mapping

from batchjob.schedulers.cluster import Controller, Rpc
from collectors.cluster.metric_types import ClusterMetric, Samples, counter, gauge
from collectors.metric import NO_LABELS, labels


def _value(name: str) -> Callable[[Controller], Samples]:
    return lambda controller: ((NO_LABELS, controller.numbers.get(name)),)


def _per_scheduler(name: str) -> Callable[[Controller], Samples]:
    return lambda controller: (
        (labels(scheduler=scheduler), controller.numbers.get(f"{scheduler}_{name}"))
        for scheduler in ("main", "backfill")
    )


def _rpc_calls(
    name: str, rpcs: Callable[[Controller], Mapping[str, Rpc]]
) -> Callable[..., Samples]:
    return lambda controller: (
        (labels(**{name: key}), float(rpc.calls)) for key, rpc in rpcs(controller).items()
    )


def _rpc_seconds(
    name: str, rpcs: Callable[[Controller], Mapping[str, Rpc]]
) -> Callable[..., Samples]:
    return lambda controller: (
        (labels(**{name: key}), rpc.seconds) for key, rpc in rpcs(controller).items()
    )


def _jobs_by_event(controller: Controller) -> Samples:
    names = ("submitted", "started", "completed", "cancelled", "failed", "backfilled")
    return ((labels(event=name), controller.numbers.get(name)) for name in names)


_SINCE_RESET = "since the controller's statistics were reset."
_SLURMCTLD_METRICS = (
    ClusterMetric(
        gauge("controller_threads", "Threads of slurmctld that process RPCs."), _value("threads")
    ),
    ClusterMetric(
        gauge("controller_agents", "Agents of slurmctld that send messages to nodes."),
        _value("agents"),
    ),
    ClusterMetric(
        gauge("controller_agent_queue", "Queued messages to nodes."), _value("agent_queue")
    ),
    ClusterMetric(
        gauge("controller_database_queue", "Queued messages to the accounting database."),
        _value("dbd_queue"),
    ),
    ClusterMetric(
        counter(
            "controller_jobs_total",
            f"Jobs by event, {_SINCE_RESET} Slurm counts jobs that failed as completed; failed are "
            "only those that it could not run.",
            "event",
        ),
        _jobs_by_event,
    ),
    ClusterMetric(
        counter("controller_cycles_total", f"Cycles of a scheduler, {_SINCE_RESET}", "scheduler"),
        _per_scheduler("cycles"),
    ),
    ClusterMetric(
        gauge("controller_last_cycle_seconds", "Duration of the last cycle.", "scheduler"),
        _per_scheduler("last"),
    ),
    ClusterMetric(
        gauge(
            "controller_longest_cycle_seconds",
            f"Duration of the longest cycle, {_SINCE_RESET}",
            "scheduler",
        ),
        _per_scheduler("longest"),
    ),
    ClusterMetric(
        gauge(
            "controller_mean_cycle_seconds",
            f"Mean duration of a cycle, {_SINCE_RESET}",
            "scheduler",
        ),
        _per_scheduler("mean"),
    ),
    ClusterMetric(
        gauge("controller_queue", "Length of the queue at the last cycle.", "scheduler"),
        _per_scheduler("queue"),
    ),
    ClusterMetric(
        gauge("controller_backfill_depth", "Jobs considered in the last backfill cycle."),
        _value("backfill_depth"),
    ),
)
CONTROLLER = (
    *(row._replace(native=True) for row in _SLURMCTLD_METRICS),
    ClusterMetric(
        counter(
            "rpc_calls_total",
            f"RPCs processed by the controller by type, {_SINCE_RESET}",
            "type",
        ),
        _rpc_calls("type", lambda controller: controller.by_type),
    ),
    ClusterMetric(
        counter(
            "rpc_seconds_total",
            f"Time the controller spent on RPCs by type, {_SINCE_RESET}",
            "type",
        ),
        _rpc_seconds("type", lambda controller: controller.by_type),
    ),
    ClusterMetric(
        counter(
            "rpc_user_calls_total",
            f"RPCs by calling user, {_SINCE_RESET}",
            "user",
        ),
        _rpc_calls("user", lambda controller: controller.by_user),
    ),
    ClusterMetric(
        counter(
            "rpc_user_seconds_total",
            f"Time the controller spent on RPCs by calling user, {_SINCE_RESET}",
            "user",
        ),
        _rpc_seconds("user", lambda controller: controller.by_user),
    ),
)
