"""Counts of changes between readings, which no single reading contains.

How often nodes failed, how long they were unavailable or draining, and how long jobs waited.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from batchjob.schedulers.cluster import ClusterJob, ClusterNode
from collectors.cluster.metric_types import Histogram


class ConditionDurations:
    """Counts each period in which a node was in a condition once, when the period is over.

    A period begins when the scheduler says that its reason was given, if that lies between the last
    reading without it and the first one with it, otherwise at the latter. A period that began
    before the first reading counts only if its reason has a time. Nodes that are removed are
    forgotten.
    """

    def __init__(self, holds: Callable[[ClusterNode], bool]) -> None:
        self._holds = holds
        self._known: dict[str, float | None] = {}  # node in the state -> since when, if known
        self._before: dict[str, float] = {}  # node -> time of its last reading
        self._over = Histogram()

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> Histogram:
        """The histogram, with the periods that ended since the previous reading."""
        known: dict[str, float | None] = {}
        for node in nodes:
            if self._holds(node):
                known[node.name] = self._begin(node, now)
            elif (begin := self._known.get(node.name)) is not None:
                self._over = self._over.plus(max(0.0, now - begin))
        self._known = known
        self._before = dict.fromkeys((node.name for node in nodes), now)
        return self._over

    def _begin(self, node: ClusterNode, now: float) -> float | None:
        if node.name in self._known:
            return self._known[node.name]
        before, said = self._before.get(node.name), node.reason_since
        if said is not None and (before or 0) <= said <= now:
            return said
        return None if before is None else now


def unavailable(node: ClusterNode) -> bool:
    """Whether no job may be started on the node."""
    return not node.usable


def draining(node: ClusterNode) -> bool:
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
        self._known: set[tuple[str, int]] | None = None
        self._waited: Mapping[str, Histogram] = {}

    def observe(self, jobs: Iterable[ClusterJob]) -> Mapping[str, Histogram]:
        """The histogram by partition, with the jobs that began since the previous reading."""
        begun = {(job.jobid, job.started): job for job in jobs if job.started is not None}
        keys = {(jobid, started) for jobid, started in begun if started is not None}
        waited = dict(self._waited)
        for key in sorted(keys - self._known) if self._known is not None else ():
            job = begun[key]
            if job.eligible is None or job.eligible > key[1]:
                continue
            before = waited.get(job.partition, Histogram())
            waited[job.partition] = before.plus(key[1] - job.eligible)
        self._known, self._waited = keys, waited
        return waited


_FAILED_STATES = frozenset(("down", "error"))


class NodeFailures:
    """Counts a node each time it has failed and had not at the previous reading.

    A node that failed before the first reading counts as 0; nodes that are removed are forgotten.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[bool, int]] = {}  # node -> (failed, number of failures)

    def observe(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        """The nodes with their counts."""
        known: dict[str, tuple[bool, int]] = {}
        for node in nodes:
            failed = node.state in _FAILED_STATES or "fail" in node.flags
            before, count = self._known.get(node.name, (failed, 0))
            known[node.name] = failed, count + (failed and not before)
        self._known = known
        return [node._replace(failures=known[node.name][1]) for node in nodes]
