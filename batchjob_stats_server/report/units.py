"""Formatting of quantities by unit, and amounts to request, in the notation of a scheduler."""

import math
from collections.abc import Callable, Mapping

from batchjob.runtime import formatting
from batchjob.runtime.formatting import format_clock, size
from batchjob.schedulers import registry
from batchjob.schedulers.registry import Scheduler
from batchjob_stats_server.report.model import Row

_GIB = 1 << 30


def format_emissions(grams: float) -> str:
    """`120 g CO2e`, or kg."""
    return f"{formatting.mass(grams)} CO2e"


FORMATTERS: Mapping[str, Callable[[float], str]] = {
    "bytes": formatting.size,
    "seconds": formatting.format_clock,
    "ratio": formatting.share,
    "joules": formatting.energy,
    "grams": format_emissions,
    "count": formatting.digits,
}


def memory_to_request_bytes(needed: float) -> int:
    """Memory to request: a fifth more than needed, rounded up to a common amount."""
    amount = needed * 1.2
    step = next(
        step
        for below, step in ((_GIB, 128 << 20), (16 * _GIB, _GIB), (64 * _GIB, 4 * _GIB),
                            (math.inf, 16 * _GIB))
        if amount <= below
    )  # fmt: skip
    return math.ceil(amount / step) * step


def time_to_request_seconds(needed: float) -> int:
    """Time to request: a quarter more than needed, rounded up, at least ten minutes."""
    amount = needed * 1.25
    step = 600 if amount <= 7200 else 1800 if amount <= 6 * 3600 else 3600
    return max(1, math.ceil(amount / step)) * step


def memory_request(job: Row, node_bytes: int) -> str:
    """Memory of each node, such as `24 GiB per node (--mem=24576M)`."""
    nodes = job["allocated_nodes"] or 1
    mib = node_bytes >> 20
    option = _scheduler(job).memory_request.format(mib=mib, all=mib * nodes)
    return size(node_bytes) + (" per node" if nodes > 1 else "") + _in_brackets(option)


def time_request(job: Row, seconds: float) -> str:
    """A time limit, such as `4:00:00 (--time=4:00:00)`."""
    return format_clock(seconds) + _in_brackets(
        _scheduler(job).time_request.format(hms=format_clock(seconds))
    )


def _scheduler(job: Row) -> Scheduler:
    return registry.find_by_source(job["source"]) or Scheduler("", "")


def _in_brackets(option: str) -> str:
    return f" ({option})" if option else ""
