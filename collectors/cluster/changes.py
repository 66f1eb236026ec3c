"""What is counted from one reading to the next, since no single one tells it.

How often nodes failed, how long they were out of use or draining, and how long jobs waited.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from batchjob.schedulers.cluster import ClusterJob, ClusterNode
from collectors.cluster.histogram import Histogram


class ConditionDurations:
    """Counts each spell of a node once, when it is over.

    A spell begins when the scheduler says that its reason was given, if that lies between the
    readings without it and with it, else at the reading that first shows it. One that had begun
    before we looked counts only where its reason has a time. A node that is gone is forgotten.
    """

    def __init__(self, holds: Callable[[ClusterNode], bool]) -> None:
        self._holds = holds
        self._known: dict[str, float | None] = {}  # nodes in a spell -> its begin, if known
        self._before: dict[str, float] = {}  # all nodes -> when they were last read
        self._over = Histogram()

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> Histogram:
        """The histogram, with the spells that ended since the reading before."""
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
    """No job may be started there."""
    return not node.usable


def draining(node: ClusterNode) -> bool:
    """It takes no jobs, and those it has go on."""
    return "drain" in node.flags and (
        bool(node.cpus_allocated) or node.state in ("allocated", "mixed")
    )


class WaitDurations:
    """Counts each job once, at the reading that first shows it started.

    The jobs of the first reading began before we looked, so they are not counted. A job counts
    again when it is requeued and restarts.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] | None = None
        self._waited: Mapping[str, Histogram] = {}

    def observe(self, jobs: Iterable[ClusterJob]) -> Mapping[str, Histogram]:
        """The histogram by partition, with the jobs that began since the reading before."""
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
    """Counts a node each time that it has failed and had not at the reading before.

    A node that failed before we looked counts 0; one that is gone is forgotten.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[bool, int]] = {}  # node -> failed, how often

    def observe(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        """The nodes with their counts."""
        known: dict[str, tuple[bool, int]] = {}
        for node in nodes:
            failed = node.state in _FAILED_STATES or "fail" in node.flags
            before, count = self._known.get(node.name, (failed, 0))
            known[node.name] = failed, count + (failed and not before)
        self._known = known
        return [node._replace(failures=known[node.name][1]) for node in nodes]
