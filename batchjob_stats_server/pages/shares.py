"""How much of what it was given a job used, and which colour that has."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchjob_stats_server.report import efficiency
from batchjob_stats_server.report.model import Efficiency

Row = Mapping[Any, Any]

NAMES = {"cpu": "CPU", "memory": "Memory", "gpu": "GPU", "time": "Time"}

# Below the first is low, below the second fair, above the third high.
_LEVELS = {
    "cpu": (0.25, 0.6, 99.0),
    "memory": (0.2, 0.5, 0.95),
    "gpu": (0.25, 0.6, 99.0),
    "time": (0.0, 0.0, 0.95),
}


class Share(NamedTuple):
    """A part of a whole, or why it is not known."""

    name: str
    ratio: float | None  # may be above 1
    level: str = ""  # low, fair, good or high, for the colour
    detail: str = ""  # how it was made
    reason: str = ""  # why there is none


class Shares(NamedTuple):
    """Of one run. A job without GPUs has no share of them."""

    cpu: Share
    memory: Share
    gpu: Share | None
    time: Share


def of(row: Row, now: int) -> Shares:
    """The shares of a row of `job` with its usage."""
    gpu = efficiency.gpu(row)
    return Shares(
        shown(efficiency.cpu(row, now)),
        shown(efficiency.memory(row)),
        shown(gpu) if gpu else None,
        shown(efficiency.time(row, now)),
    )


def shown(found: Efficiency) -> Share:
    """An efficiency of a report, with its colour."""
    name = NAMES[found.what]
    if found.ratio is None:
        return Share(name, None, reason=found.missing)
    return Share(name, found.ratio, _level(found.what, found.ratio), found.formula)


def _level(what: str, ratio: float) -> str:
    low, fair, high = _LEVELS[what]
    if ratio > high:
        return "high"
    return "low" if ratio < low else "fair" if ratio < fair else "good"


_SUMS = {
    "cpu": ("cpu_seconds", "measured_cpu_allocated_seconds"),
    "gpu": ("gpu_seconds", "measured_gpu_allocated_seconds"),
    "memory": ("memory_byte_seconds", "measured_memory_allocated_byte_seconds"),
}


def used(sums: Row, what: str) -> Share:
    """The same of sums over days."""
    part, whole = _SUMS[what]
    if not sums[whole]:
        return Share(NAMES[what], None, reason="not measured")
    ratio = sums[part] / sums[whole]
    return Share(NAMES[what], ratio, _level(what, ratio), "of the allocation that was measured")


class Part(NamedTuple):
    """One of several that should do the same, such as a node or a GPU."""

    name: str
    value: float | None
    share: Share


def compared(parts: Mapping[str, float | None], whole: float | None = None) -> list[Part]:
    """Each against `whole`, or against the largest: what does less than the others shows."""
    known = [value for value in parts.values() if value is not None]
    top = whole or max(known, default=0.0)
    mean = sum(known) / len(known) if known else 0.0
    made = []
    for name, value in parts.items():
        if value is None or top <= 0:
            made.append(Part(name, value, Share(name, None, reason="not measured")))
            continue
        level = "low" if value < 0.5 * mean else "good"
        made.append(Part(name, value, Share(name, value / top, level)))
    return made
