"""Metric families about the controller's own work."""

from collections.abc import Callable, Mapping

from batchjob.schedulers.cluster import Controller, Rpc
from collectors.cluster.metric_types import ClusterMetric, Samples, counter, gauge
from collectors.metric import NO_LABELS, labels


def _said(name: str) -> Callable[[Controller], Samples]:
    return lambda controller: ((NO_LABELS, controller.numbers.get(name)),)


def _by_cycle(name: str) -> Callable[[Controller], Samples]:
    return lambda controller: (
        (labels(scheduler=which), controller.numbers.get(f"{which}_{name}"))
        for which in ("main", "backfill")
    )


def _calls(name: str, of: Callable[[Controller], Mapping[str, Rpc]]) -> Callable[..., Samples]:
    return lambda controller: (
        (labels(**{name: key}), float(rpc.calls)) for key, rpc in of(controller).items()
    )


def _seconds(name: str, of: Callable[[Controller], Mapping[str, Rpc]]) -> Callable[..., Samples]:
    return lambda controller: (
        (labels(**{name: key}), rpc.seconds) for key, rpc in of(controller).items()
    )


def _events(controller: Controller) -> Samples:
    names = ("submitted", "started", "completed", "cancelled", "failed", "backfilled")
    return ((labels(event=name), controller.numbers.get(name)) for name in names)


_SINCE = "since the controller's statistics were reset."
_OF_THE_CONTROLLER = (
    ClusterMetric(
        gauge("controller_threads", "Threads of slurmctld that process RPCs."), _said("threads")
    ),
    ClusterMetric(
        gauge("controller_agents", "Agents of slurmctld that send messages to nodes."),
        _said("agents"),
    ),
    ClusterMetric(
        gauge("controller_agent_queue", "Queued messages to nodes."), _said("agent_queue")
    ),
    ClusterMetric(
        gauge("controller_database_queue", "Queued messages to the accounting database."),
        _said("dbd_queue"),
    ),
    ClusterMetric(
        counter("controller_jobs_total", f"Jobs by event, {_SINCE}", "event"),
        _events,
    ),
    ClusterMetric(
        counter("controller_cycles_total", f"Cycles of a scheduler, {_SINCE}", "scheduler"),
        _by_cycle("cycles"),
    ),
    ClusterMetric(
        gauge("controller_last_cycle_seconds", "Duration of the last cycle.", "scheduler"),
        _by_cycle("last"),
    ),
    ClusterMetric(
        gauge(
            "controller_longest_cycle_seconds",
            f"Duration of the longest cycle, {_SINCE}",
            "scheduler",
        ),
        _by_cycle("longest"),
    ),
    ClusterMetric(
        gauge("controller_mean_cycle_seconds", f"Mean duration of a cycle, {_SINCE}", "scheduler"),
        _by_cycle("mean"),
    ),
    ClusterMetric(
        gauge("controller_queue", "Length of the queue at the last cycle.", "scheduler"),
        _by_cycle("queue"),
    ),
    ClusterMetric(
        gauge("controller_backfill_depth", "Jobs considered in the last backfill cycle."),
        _said("backfill_depth"),
    ),
)
CONTROLLER = (
    *(row._replace(native=True) for row in _OF_THE_CONTROLLER),
    ClusterMetric(
        counter(
            "rpc_calls_total",
            f"RPCs processed by the controller by type, {_SINCE}",
            "type",
        ),
        _calls("type", lambda controller: controller.by_type),
    ),
    ClusterMetric(
        counter(
            "rpc_seconds_total", f"Time the controller spent on RPCs by type, {_SINCE}", "type"
        ),
        _seconds("type", lambda controller: controller.by_type),
    ),
    ClusterMetric(
        counter(
            "rpc_user_calls_total",
            f"RPCs by calling user, {_SINCE}",
            "user",
        ),
        _calls("user", lambda controller: controller.by_user),
    ),
    ClusterMetric(
        counter(
            "rpc_user_seconds_total",
            f"Time the controller spent on RPCs by calling user, {_SINCE}",
            "user",
        ),
        _seconds("user", lambda controller: controller.by_user),
    ),
)
