"""The families of the cluster collector, and how each is made from a reading."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchjob.states import JobState
from collectors.cluster.reading import (
    Controller,
    Job,
    License,
    Node,
    Reservation,
    Rpc,
    Share,
)
from collectors.cluster.waits import BOUNDS, Waited
from collectors.metric import NO_LABELS, Family, Labels, Metric, labels

Samples = Iterable[tuple[Labels, float | None]]


class Row(NamedTuple):
    """A family and what makes its samples from a part's reading; None makes no sample."""

    metric: Metric
    samples: Callable[[Any], Samples]


def _gauge(name: str, help: str, *names: str) -> Metric:
    return Metric(f"batchjob_cluster_{name}", "gauge", help, names)


def _counter(name: str, help: str, *names: str) -> Metric:
    return Metric(f"batchjob_cluster_{name}", "counter", help, names)


def _counted(counts: Mapping[tuple[str, ...], float], *names: str) -> Samples:
    for values, number in sorted(counts.items()):
        yield labels(**dict(zip(names, values, strict=True))), float(number)


def _per_node(value: Callable[[Node], float | None]) -> Callable[[Sequence[Node]], Samples]:
    return lambda nodes: ((labels(node=node.name), value(node)) for node in nodes)


def _idle(node: Node, total: int | None, allocated: int | None) -> float | None:
    if total is None or allocated is None:
        return None
    return max(0, total - allocated) if node.usable else 0


def _nodes_by_state(nodes: Sequence[Node]) -> Samples:
    return _counted(Counter((node.state,) for node in nodes), "state")


def _nodes_by_flag(nodes: Sequence[Node]) -> Samples:
    return _counted(Counter((flag,) for node in nodes for flag in node.flags), "flag")


def _nodes_by_partition(nodes: Sequence[Node]) -> Samples:
    found: Counter[tuple[str, ...]] = Counter(
        (part, node.state) for node in nodes for part in node.partitions
    )
    return _counted(found, "partition", "state")


def _node_info(nodes: Sequence[Node]) -> Samples:
    return ((labels(node=node.name, state=node.state), 1.0) for node in nodes)


def _node_flags(nodes: Sequence[Node]) -> Samples:
    for node in nodes:
        for flag in sorted(node.flags):
            yield labels(node=node.name, flag=flag), 1.0


def _reasons(nodes: Sequence[Node]) -> Samples:
    return (
        (labels(node=node.name, reason=node.reason), 1.0)
        for node in nodes
        if node.reason and not node.usable
    )


def _since(nodes: Sequence[Node]) -> Samples:
    return ((labels(node=node.name), node.reason_since) for node in nodes if not node.usable)


NODES = (
    Row(_gauge("nodes", "Nodes by base state.", "state"), _nodes_by_state),
    Row(
        _gauge("nodes_flagged", "Nodes by flag beside the state; a node may have several.", "flag"),
        _nodes_by_flag,
    ),
    Row(
        _gauge(
            "partition_nodes",
            "Nodes of a partition or queue by base state; a node counts in each of its partitions.",
            "partition",
            "state",
        ),
        _nodes_by_partition,
    ),
    Row(_gauge("node_info", "1 for the node's base state.", "node", "state"), _node_info),
    Row(_gauge("node_flag", "1 for each flag that is set.", "node", "flag"), _node_flags),
    Row(
        _gauge(
            "node_unavailable_info",
            "1 with the reason given for a node that takes no jobs: cut to 64 characters, without "
            "paths, times and long numbers.",
            "node",
            "reason",
        ),
        _reasons,
    ),
    Row(
        _gauge(
            "node_unavailable_since_seconds",
            "Unix time at which that reason was given.",
            "node",
        ),
        _since,
    ),
    Row(
        _counter(
            "node_failures_total",
            "Times the node was seen to become down, error or failing since the exporter began.",
            "node",
        ),
        _per_node(lambda node: node.failures),
    ),
    Row(_gauge("node_cpus", "CPUs of the node.", "node"), _per_node(lambda node: node.cpus)),
    Row(
        _gauge("node_cpus_allocated", "CPUs that jobs hold.", "node"),
        _per_node(lambda node: node.cpus_allocated),
    ),
    Row(
        _gauge("node_cpus_idle", "CPUs free for jobs; 0 where no job may start.", "node"),
        _per_node(lambda node: _idle(node, node.cpus, node.cpus_allocated)),
    ),
    Row(
        _gauge("node_memory_bytes", "Memory of the node, as the scheduler counts it.", "node"),
        _per_node(lambda node: node.memory_bytes),
    ),
    Row(
        _gauge("node_memory_allocated_bytes", "Memory that jobs hold.", "node"),
        _per_node(lambda node: node.memory_allocated_bytes),
    ),
    Row(
        _gauge("node_memory_idle_bytes", "Memory free for jobs; 0 where none may start.", "node"),
        _per_node(lambda node: _idle(node, node.memory_bytes, node.memory_allocated_bytes)),
    ),
    Row(_gauge("node_gpus", "GPUs of the node.", "node"), _per_node(lambda node: node.gpus)),
    Row(
        _gauge("node_gpus_allocated", "GPUs that jobs hold.", "node"),
        _per_node(lambda node: node.gpus_allocated),
    ),
    Row(
        _gauge("node_gpus_idle", "GPUs free for jobs; 0 where no job may start.", "node"),
        _per_node(lambda node: _idle(node, node.gpus, node.gpus_allocated)),
    ),
)


class Jobs(NamedTuple):
    """Jobs of one reading, the histogram of waits so far, and when it was read (Unix time)."""

    jobs: Sequence[Job]
    waited: Mapping[str, Waited]
    at: float


def _pending(reading: Jobs) -> Iterator[Job]:
    return (job for job in reading.jobs if job.state is JobState.PENDING)


def _jobs_by_state(reading: Jobs) -> Samples:
    found: Counter[tuple[str, ...]] = Counter()
    for job in reading.jobs:
        if job.state.live:
            found[job.partition, job.state] += job.tasks
    return _counted(found, "partition", "state")


def _jobs_by_reason(reading: Jobs) -> Samples:
    found: Counter[tuple[str, ...]] = Counter()
    for job in _pending(reading):
        found[job.partition, job.reason] += job.tasks
    return _counted(found, "partition", "reason")


def _wanted(value: Callable[[Job], int | None]) -> Callable[[Jobs], Samples]:
    def samples(reading: Jobs) -> Samples:
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for job in _pending(reading):
            each = value(job)
            if each is not None:
                found[(job.partition,)] += each * job.tasks
        return _counted(found, "partition")

    return samples


def _oldest(reading: Jobs) -> Samples:
    oldest: dict[tuple[str, ...], float] = {}
    for job in _pending(reading):
        if job.eligible is not None and job.eligible <= reading.at:
            waited = reading.at - job.eligible
            oldest[(job.partition,)] = max(waited, oldest.get((job.partition,), 0.0))
    return _counted(oldest, "partition")


JOBS = (
    Row(
        _gauge(
            "jobs",
            "Jobs that wait, run or are suspended; each task of an array counts. A job that waits "
            "for several partitions counts in the first.",
            "partition",
            "state",
        ),
        _jobs_by_state,
    ),
    Row(
        _gauge("jobs_pending", "Jobs that wait, by reason.", "partition", "reason"),
        _jobs_by_reason,
    ),
    Row(
        _gauge("pending_cpus", "CPUs asked for by jobs that wait.", "partition"),
        _wanted(lambda job: job.cpus),
    ),
    Row(
        _gauge("pending_gpus", "GPUs asked for by jobs that wait.", "partition"),
        _wanted(lambda job: job.gpus),
    ),
    Row(
        _gauge(
            "pending_longest_wait_seconds",
            "How long the job that waits longest has been eligible.",
            "partition",
        ),
        _oldest,
    ),
)
WAIT = Metric(
    "batchjob_cluster_job_wait_seconds",
    "histogram",
    "Time from eligible to start of the jobs that began since the exporter did.",
    ("partition",),
)


def waits(reading: Jobs) -> Iterator[Family]:
    """The histogram: all samples of a partition together, as OpenMetrics demands."""
    for partition, waited in sorted(reading.waited.items()):
        total = 0
        buckets = []
        for bound, number in zip((*map(float, BOUNDS), "+Inf"), waited.counts, strict=True):
            total += number
            buckets.append((labels(partition=partition, le=str(bound)), float(total)))
        own = labels(partition=partition)
        yield Family(WAIT, buckets, "_bucket")
        yield Family(WAIT, [(own, float(total))], "_count")
        yield Family(WAIT, [(own, waited.seconds)], "_sum")


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


CONTROLLER = (
    Row(_gauge("controller_threads", "Threads that answer calls."), _said("threads")),
    Row(_gauge("controller_agents", "Agents that send messages to nodes."), _said("agents")),
    Row(_gauge("controller_agent_queue", "Messages to nodes that wait."), _said("agent_queue")),
    Row(
        _gauge("controller_database_queue", "Messages that wait for the accounting database."),
        _said("dbd_queue"),
    ),
    Row(
        _counter(
            "controller_jobs_total",
            "Jobs by what happened to them, since the controller's statistics were reset.",
            "event",
        ),
        _events,
    ),
    Row(
        _counter(
            "controller_cycles_total",
            "Cycles of a scheduler, since the controller's statistics were reset.",
            "scheduler",
        ),
        _by_cycle("cycles"),
    ),
    Row(
        _gauge("controller_last_cycle_seconds", "Length of the last cycle.", "scheduler"),
        _by_cycle("last"),
    ),
    Row(
        _gauge(
            "controller_longest_cycle_seconds",
            "Length of the longest cycle, since the controller's statistics were reset.",
            "scheduler",
        ),
        _by_cycle("longest"),
    ),
    Row(
        _gauge(
            "controller_mean_cycle_seconds",
            "Mean length of a cycle, since the controller's statistics were reset.",
            "scheduler",
        ),
        _by_cycle("mean"),
    ),
    Row(
        _gauge("controller_queue", "Jobs that the last cycle had before it.", "scheduler"),
        _by_cycle("queue"),
    ),
    Row(
        _gauge("controller_backfill_depth", "Jobs that the last backfill cycle looked at."),
        _said("backfill_depth"),
    ),
    Row(
        _counter(
            "rpc_calls_total",
            "Calls that the controller answered, since its statistics were reset.",
            "type",
        ),
        _calls("type", lambda controller: controller.by_type),
    ),
    Row(
        _counter("rpc_seconds_total", "Time the controller took for those calls.", "type"),
        _seconds("type", lambda controller: controller.by_type),
    ),
    Row(
        _counter(
            "rpc_user_calls_total",
            "Calls by the user who made them, since the controller's statistics were reset.",
            "user",
        ),
        _calls("user", lambda controller: controller.by_user),
    ),
    Row(
        _counter("rpc_user_seconds_total", "Time the controller took for those calls.", "user"),
        _seconds("user", lambda controller: controller.by_user),
    ),
)


def _each(name: str, key: str, value: Callable[[Any], float | None]) -> Callable[..., Samples]:
    return lambda readings: (
        (labels(**{name: str(getattr(each, key))}), value(each)) for each in readings
    )


def _share(name: str, help: str, value: Callable[[Share], float | None]) -> Row:
    return Row(_gauge(name, help, "account"), _each("account", "account", value))


def _license(name: str, help: str, value: Callable[[License], float | None]) -> Row:
    return Row(_gauge(name, help, "license"), _each("license", "name", value))


def _reservation(name: str, help: str, value: Callable[[Reservation], float | None]) -> Row:
    return Row(_gauge(name, help, "reservation"), _each("reservation", "name", value))


FAIRSHARE = (
    _share(
        "account_shares_ratio", "The account's part of its parent's shares.", lambda s: s.shares
    ),
    _share(
        "account_usage_ratio",
        "The account's part of its parent's decayed usage.",
        lambda s: s.usage,
    ),
    _share(
        "account_fairshare_level",
        "Shares divided by usage (Fair Tree): above 1 the account has used less than its share.",
        lambda s: s.level,
    ),
    _share(
        "account_fairshare_ratio",
        "Fair-share factor of the account, where the scheduler gives accounts one.",
        lambda s: s.factor,
    ),
)
LICENSES = (
    _license("licenses", "Licences there are.", lambda each: each.total),
    _license("licenses_used", "Licences that jobs hold.", lambda each: each.used),
    _license("licenses_free", "Licences that jobs may get.", lambda each: each.free),
    _license("licenses_reserved", "Licences set aside.", lambda each: each.reserved),
)
RESERVATIONS = (
    _reservation("reservation_nodes", "Nodes set aside.", lambda each: each.nodes),
    _reservation("reservation_cores", "Cores set aside.", lambda each: each.cores),
    _reservation("reservation_start_time_seconds", "Unix time of its start.", lambda r: r.start),
    _reservation("reservation_end_time_seconds", "Unix time of its end.", lambda r: r.end),
)

PARTS: Mapping[str, tuple[Row, ...]] = {
    "nodes": NODES,
    "jobs": JOBS,
    "controller": CONTROLLER,
    "fairshare": FAIRSHARE,
    "licenses": LICENSES,
    "reservations": RESERVATIONS,
}
INFO = _gauge("info", "1 with the scheduler that is asked.", "scheduler")
AGE = _gauge("age_seconds", "Time since the scheduler gave the part shown.", "part")
ERRORS = _counter("errors_total", "Readings that failed.", "part")
METRICS = (
    INFO,
    AGE,
    ERRORS,
    *(row.metric for rows in PARTS.values() for row in rows),
    WAIT,
)


def families(part: str, reading: Any) -> Iterator[Family]:
    """The families of one part's reading."""
    for metric, samples in PARTS[part]:
        known = {label: float(number) for label, number in samples(reading) if number is not None}
        yield Family(metric, list(known.items()))
    if part == "jobs":
        yield from waits(reading)
