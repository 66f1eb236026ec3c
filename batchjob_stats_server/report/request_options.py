"""Amounts of memory and time to request, in the notation of a job's scheduler."""

from batchjob.runtime.formatting import format_clock, size
from batchjob.schedulers import registry
from batchjob.schedulers.registry import RequestSyntax
from batchjob_stats_server.report.model import Row


def memory(job: Row, node_bytes: int) -> str:
    """Memory of each node, such as `24 GiB per node (--mem=24576M)`."""
    nodes = job["allocated_nodes"] or 1
    mib = node_bytes >> 20
    option = _syntax(job).memory.format(mib=mib, all=mib * nodes)
    return size(node_bytes) + (" per node" if nodes > 1 else "") + _in_brackets(option)


def time(job: Row, seconds: float) -> str:
    """A time limit, such as `4:00:00 (--time=4:00:00)`."""
    return format_clock(seconds) + _in_brackets(_syntax(job).time.format(hms=format_clock(seconds)))


def _syntax(job: Row) -> RequestSyntax:
    scheduler = registry.find_by_source(job["source"])
    return scheduler.request if scheduler else RequestSyntax("", "")


def _in_brackets(option: str) -> str:
    return f" ({option})" if option else ""
