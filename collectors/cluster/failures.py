"""How often each node was seen to fail."""

from collections.abc import Sequence

from batchjob.schedulers.cluster import ClusterNode

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
