"""Time for which GPUs were allocated, idle or unavailable."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from batchjob.schedulers.cluster import ClusterNode

GpuSeconds = Mapping[tuple[str, ...], float]
"""By node and state."""


class GpuTime:
    """Adds the time between two readings to the state in the first of them.

    Pauses longer than `longest` seconds are left out, since the states in them are unknown. Nodes
    that are removed are forgotten.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._at = float("-inf")  # monotonic time of the last reading
        self._shown: dict[tuple[str, ...], int] = {}  # number of GPUs by node and state
        self._seconds: dict[tuple[str, ...], float] = {}

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> GpuSeconds:
        """GPU seconds since the first reading; `now` is monotonic."""
        elapsed = now - self._at
        counted = defaultdict(float, self._seconds)
        if elapsed <= self._longest:
            for key, gpus in self._shown.items():
                counted[key] += gpus * elapsed
        self._at = now
        self._shown = {key: gpus for node in nodes for key, gpus in _by_state(node)}
        self._seconds = {key: counted[key] for key in self._shown}
        return self._seconds


def _by_state(node: ClusterNode) -> Iterator[tuple[tuple[str, ...], int]]:
    if node.gpus and node.gpus_allocated is not None:
        free = max(0, node.gpus - node.gpus_allocated)
        yield (node.name, "allocated"), node.gpus_allocated
        yield (node.name, "idle"), free if node.usable else 0
        yield (node.name, "unavailable"), 0 if node.usable else free
