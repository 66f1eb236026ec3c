"""Time for which GPUs were allocated, idle or unavailable."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from batchjob.schedulers.cluster import ClusterNode

GpuSeconds = Mapping[tuple[str, ...], float]
"""By node and state."""


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

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> GpuSeconds:
        """GPU seconds since the first reading; `now` is monotonic."""
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
