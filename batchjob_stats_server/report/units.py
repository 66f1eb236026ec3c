"""Formatting of quantities by unit, and amounts to request, in the notation of a scheduler."""

from collections.abc import Callable, Mapping

from batchjob.runtime import formatting
from batchjob.runtime.formatting import format_clock, size
from batchjob.schedulers import registry
from batchjob.schedulers.registry import Scheduler
from batchjob_stats_server.report.model import Row


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


def memory_request(job: Row, node_bytes: float) -> str:
    """Memory of each node, such as `24 GiB per node (--mem=24576M)`."""
    nodes = job["allocated_nodes"] or 1
    mib = int(node_bytes) >> 20
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
