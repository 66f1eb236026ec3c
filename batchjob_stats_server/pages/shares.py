"""How much of what it was given a job used: CPU, memory, GPUs and time."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Row = Mapping[Any, Any]


class Share(NamedTuple):
    """A part of a whole, or why it is not known."""

    name: str
    ratio: float | None  # may be above 1
    level: str = ""  # low, fair, good or high, for the colour
    detail: str = ""  # where it comes from
    reason: str = ""  # why there is none


class Shares(NamedTuple):
    """Of one run. A job without GPUs has no share of them."""

    cpu: Share
    memory: Share
    gpu: Share | None
    time: Share


def of(row: Row, now: int) -> Shares:
    """The shares of a row of `job` with its usage."""
    return Shares(_cpu(row), _memory(row), _gpu(row), _time(row, now))


def elapsed(row: Row, now: int) -> int | None:
    """Seconds a run has taken, or took, without its suspensions."""
    if row["elapsed_seconds"] is not None and row["end_time"] is not None:
        return int(row["elapsed_seconds"])
    if row["start_time"] is None:
        return None
    return max(
        0, int((row["end_time"] or now) - row["start_time"] - (row["suspended_seconds"] or 0))
    )


def unmeasured(row: Row) -> str:
    """Why there are no measurements of a run."""
    if row["start_time"] is None:
        return "it has not started"
    if row["usage_source"] is None:
        return "not measured yet" if row["end_time"] is None else "not measured"
    return row["usage_doubt"] or "not measured"


def _used(level: tuple[float, float], ratio: float) -> str:
    return "low" if ratio < level[0] else "fair" if ratio < level[1] else "good"


def _cpu(row: Row) -> Share:
    ratio = row["cpu_efficiency"]
    if ratio is None:
        return Share("CPU", None, reason=unmeasured(row))
    return Share("CPU", ratio, _used((0.25, 0.6), ratio), f"of {row['allocated_cpus']} CPUs")


def _memory(row: Row) -> Share:
    ratio = row["memory_efficiency"]
    if ratio is None:
        known = row["allocated_memory_bytes"] or row["usage_memory_peak_bytes"] is None
        return Share("Memory", None, reason=unmeasured(row) if known else "no limit is known")
    level = "high" if ratio > 0.95 else _used((0.2, 0.5), ratio)
    return Share("Memory", ratio, level, "peak, of what was allocated")


def _gpu(row: Row) -> Share | None:
    if not (row["allocated_gpus"] or row["usage_gpus"]):
        return None
    ratio = row["usage_gpu_utilization_ratio"]
    if ratio is None:
        return Share("GPU", None, reason=unmeasured(row))
    count = row["usage_gpus"] or row["allocated_gpus"]
    return Share(
        "GPU", ratio, _used((0.25, 0.6), ratio), f"mean of {count} GPUs over the time held"
    )


def _time(row: Row, now: int) -> Share:
    limit, lasted = row["time_limit_seconds"], elapsed(row, now)
    if not limit:
        return Share("Time", None, reason="no time limit is known")
    if lasted is None:
        return Share("Time", None, reason="it has not started")
    ratio = lasted / limit
    return Share("Time", ratio, "high" if ratio > 0.95 else "good", "of the time limit")


_SUMS = {
    "cpu": ("CPU", "cpu_seconds", "measured_cpu_allocated_seconds"),
    "gpu": ("GPU", "gpu_seconds", "measured_gpu_allocated_seconds"),
    "memory": ("Memory", "memory_byte_seconds", "measured_memory_allocated_byte_seconds"),
}


def used(sums: Row, what: str) -> Share:
    """The same of sums over days."""
    name, part, whole = _SUMS[what]
    if not sums[whole]:
        return Share(name, None, reason="not measured")
    ratio = sums[part] / sums[whole]
    return Share(name, ratio, _used((0.25, 0.6), ratio), "of the allocation that was measured")
