"""How long nodes were in a condition: out of use, or draining."""

from collections.abc import Callable, Sequence

from batchjob.schedulers.cluster import ClusterNode
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
