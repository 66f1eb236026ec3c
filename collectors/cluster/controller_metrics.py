"""Metric families about the controller's own work."""

from collections.abc import Callable
from typing import Literal

from batchjob.schedulers.cluster import Controller, Rpc
from collectors.cluster.metric_types import Samples, counter, gauge
from collectors.metric import NO_LABELS, labels

Rows = Callable[[Controller], Samples]


def _value(name: str) -> Rows:
    return lambda controller: ((NO_LABELS, controller.numbers.get(name)),)


def _per_scheduler(name: str) -> Rows:
    return lambda controller: (
        (labels(scheduler=scheduler), controller.numbers.get(f"{scheduler}_{name}"))
        for scheduler in ("main", "backfill")
    )


def _rpcs(kind: Literal["type", "user"], value: Callable[[Rpc], float | None]) -> Rows:
    """A sample of each RPC, by its type or calling user."""
    return lambda controller: (
        (labels(**{kind: key}), value(rpc))
        for key, rpc in (controller.by_type if kind == "type" else controller.by_user).items()
    )


def _jobs_by_event(controller: Controller) -> Samples:
    names = (
        "submitted", "started", "completed", "cancelled", "failed", "backfilled",
        "backfilled_since_reset", "backfilled_heterogeneous",
    )  # fmt: skip
    return ((labels(event=name), controller.numbers.get(name)) for name in names)


_SINCE_RESET = "since the controller's statistics were reset."
# fmt: off
_SLURMCTLD_METRICS = (
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
)
CONTROLLER = (
    *(row._replace(native=True) for row in _SLURMCTLD_METRICS),
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
