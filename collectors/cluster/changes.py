"""Counts changes between readings, which no single reading contains.

How often nodes failed, how long they were unavailable or draining, how long jobs waited, and how
long GPUs were allocated, idle or unavailable.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from batchjob.schedulers.cluster import ClusterJob, ClusterNode
from collectors.cluster.metric_types import Histogram


class ConditionDurations:
    """Counts each period in which a node was in a condition once, when the period is over.

    A period begins at the time of the node's reason, if that lies between the last reading without
    the condition and the first one with it, otherwise at the latter. A period that began
    before the first reading counts only if its reason has a time. Removed nodes are forgotten.
    """

    def __init__(self, has_condition: Callable[[ClusterNode], bool]) -> None:
        self._has_condition = has_condition
        self._start_times: dict[str, float | None] = {}  # by node; None: unknown
        self._last_seen_at: dict[str, float] = {}  # by node
        self._durations = Histogram()

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> Histogram:
        """The histogram, with the periods that ended since the previous reading."""
        start_times: dict[str, float | None] = {}
        for node in nodes:
            if self._has_condition(node):
                start_times[node.name] = self._start_time(node, now)
            elif (started_at := self._start_times.get(node.name)) is not None:
                self._durations = self._durations.plus(max(0.0, now - started_at))
        self._start_times = start_times
        self._last_seen_at = dict.fromkeys((node.name for node in nodes), now)
        return self._durations

    def _start_time(self, node: ClusterNode, now: float) -> float | None:
        if node.name in self._start_times:
            return self._start_times[node.name]
        previous, reason_since = self._last_seen_at.get(node.name), node.reason_since
        if reason_since is not None and (previous or 0) <= reason_since <= now:
            return reason_since
        return None if previous is None else now


def is_unavailable(node: ClusterNode) -> bool:
    return not node.is_usable


def is_draining(node: ClusterNode) -> bool:
    """Whether the node accepts no new jobs, but still runs some."""
    return "drain" in node.flags and (
        bool(node.cpus_allocated) or node.state in ("allocated", "mixed")
    )


class WaitDurations:
    """Counts each job once, at the first reading that shows it started.

    Jobs of the first reading are not counted, since they began before it. A job counts again when
    it is requeued and restarts.
    """

    def __init__(self) -> None:
        self._counted: set[tuple[str, int]] | None = None
        self._waits: Mapping[str, Histogram] = {}

    def observe(self, jobs: Iterable[ClusterJob]) -> Mapping[str, Histogram]:
        """The histogram by partition, with the jobs that started since the previous reading."""
        started_jobs = {
            (job.jobid, job.start_time): job for job in jobs if job.start_time is not None
        }
        keys = {(jobid, started) for jobid, started in started_jobs if started is not None}
        waits = dict(self._waits)
        for key in sorted(keys - self._counted) if self._counted is not None else ():
            job, start_time = started_jobs[key], key[1]
            if job.eligible_time is None or job.eligible_time > start_time:
                continue
            previous = waits.get(job.partition, Histogram())
            waits[job.partition] = previous.plus(start_time - job.eligible_time)
        self._counted, self._waits = keys, waits
        return waits


_FAILED_STATES = frozenset(("down", "error"))


class NodeFailures:
    """Counts how often each node has failed: each change from working to failed.

    A node that failed before the first reading counts as 0; nodes that are removed are forgotten.
    """

    def __init__(self) -> None:
        self._failures: dict[str, tuple[bool, int]] = {}  # by node: (failed, number of failures)

    def observe(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        failures: dict[str, tuple[bool, int]] = {}
        for node in nodes:
            failed = node.state in _FAILED_STATES or "fail" in node.flags
            previous, count = self._failures.get(node.name, (failed, 0))
            failures[node.name] = failed, count + (failed and not previous)
        self._failures = failures
        return [node._replace(failures=failures[node.name][1]) for node in nodes]


class GpuTime:
    """Counts GPU seconds: the time between two readings is spent in the state of the first.

    Gaps longer than `max_gap_seconds` are left out, since the states in them are unknown. Removed
    nodes are forgotten.
    """

    def __init__(self, max_gap_seconds: float) -> None:
        self._max_gap_seconds = max_gap_seconds
        self._read_at = float("-inf")  # monotonic time of the last reading
        self._gpus: dict[tuple[str, ...], int] = {}  # number of GPUs by node and state
        self._seconds: dict[tuple[str, ...], float] = {}

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> Mapping[tuple[str, ...], float]:
        """GPU seconds since the first reading, by node and state; `now` is monotonic."""
        elapsed = now - self._read_at
        seconds = defaultdict(float, self._seconds)
        if elapsed <= self._max_gap_seconds:
            for key, gpus in self._gpus.items():
                seconds[key] += gpus * elapsed
        self._read_at = now
        self._gpus = {key: gpus for node in nodes for key, gpus in _gpus_by_state(node)}
        self._seconds = {key: seconds[key] for key in self._gpus}
        return self._seconds


def _gpus_by_state(node: ClusterNode) -> Iterator[tuple[tuple[str, ...], int]]:
    if node.gpus and node.gpus_allocated is not None:
        free = max(0, node.gpus - node.gpus_allocated)
        yield (node.name, "allocated"), node.gpus_allocated
        yield (node.name, "idle"), free if node.is_usable else 0
        yield (node.name, "unavailable"), 0 if node.is_usable else free
