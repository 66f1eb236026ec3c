"""How much of its allocation a job used, and the colour of that."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchjob_stats_db.queries.waste import efficiency
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.explain import EfficiencyRatio
from batchjob_stats_server.report.model import Efficiency

Row = Mapping[Any, Any]

NAMES = {"cpu": "CPU", "memory": "Memory", "gpu": "GPU", "time": "Time"}


class Levels(NamedTuple):
    """Ratios: below `low` is low, below `fair` fair, above `high` high."""

    low: float
    fair: float
    high: float


LEVELS = {
    "cpu": Levels(0.25, 0.6, 99.0),
    "memory": Levels(0.2, 0.5, 0.95),
    "gpu": Levels(0.25, 0.6, 99.0),
    "time": Levels(0.0, 0.0, 0.95),
}
_IDLE = 0.01  # a GPU below this is idle


class UsageBar(NamedTuple):
    """A fraction, or why it is unknown."""

    name: str
    ratio: float | None  # may be above 1
    level: str = ""  # low, fair, good or high, for the colour
    detail: str = ""  # how it was computed
    reason: str = ""  # why it is unknown


class UsageBars(NamedTuple):
    """The bars of one run. A job without GPUs has none for them."""

    cpu: UsageBar
    memory: UsageBar
    gpu: UsageBar | None
    time: UsageBar


def of(row: Row, now: int) -> UsageBars:
    """The bars for a row of `job` with its usage."""
    gpu = explain.gpu_ratio(row)
    return UsageBars(
        shown(explain.cpu_ratio(row)),
        shown(explain.memory_ratio(row)),
        shown(gpu) if gpu else None,
        shown(explain.time_ratio(row, now)),
    )


def shown(found: Efficiency | EfficiencyRatio) -> UsageBar:
    """An efficiency with its colour."""
    name = NAMES[found.what]
    if found.ratio is None:
        return UsageBar(name, None, reason=found.missing)
    until = "" if found.until_time is None else "; measured only until some time before its end"
    return UsageBar(name, found.ratio, level(found.what, found.ratio), found.formula + until)


def level(what: str, ratio: float) -> str:
    """How full it is: a key of the colours."""
    low, fair, high = LEVELS[what]
    if ratio > high:
        return "high"
    return "low" if ratio < low else "fair" if ratio < fair else "good"


def cell(ratio: float | None) -> str:
    """The CSS class of a GPU's cell."""
    if ratio is None:
        return "unknown"
    return "idle" if ratio < _IDLE else level("gpu", ratio)


def used(sums: Row, what: str) -> UsageBar:
    """The same for sums over days."""
    ratio = efficiency(sums, what)
    if ratio is None:
        return UsageBar(NAMES[what], None, reason="not measured")
    return UsageBar(NAMES[what], ratio, level(what, ratio), "of the allocation that was measured")


class ComparedBar(NamedTuple):
    """One of several that should be equal, such as nodes or GPUs."""

    name: str
    value: float | None
    share: UsageBar


def compared(parts: Mapping[str, float | None], whole: float | None = None) -> list[ComparedBar]:
    """Each relative to `whole`, or to the largest: low ones do less than the others."""
    known = [value for value in parts.values() if value is not None]
    top = whole or max(known, default=0.0)
    mean = sum(known) / len(known) if known else 0.0
    made = []
    for name, value in parts.items():
        if value is None or top <= 0:
            made.append(ComparedBar(name, value, UsageBar(name, None, reason="not measured")))
            continue
        compared_level = "low" if value < 0.5 * mean else "good"
        made.append(ComparedBar(name, value, UsageBar(name, value / top, compared_level)))
    return made
