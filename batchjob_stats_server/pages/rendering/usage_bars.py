"""How much of its allocation a job used, as a bar with a colour."""

from collections.abc import Mapping
from typing import NamedTuple

from batchjob.judgements import thresholds
from batchjob_stats_db.queries.operators import efficiency
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.explain import EfficiencyRatio
from batchjob_stats_server.report.model import Efficiency, Row

_RECLAIMABLE = "the kernel reclaims page cache, and the job was not short of memory"
RESOURCE_TITLES = {"cpu": "CPU", "memory": "Memory", "gpu": "GPU", "time": "Time"}


class UsageBar(NamedTuple):
    """A fraction, or why it is unknown."""

    name: str
    ratio: float | None  # may be above 1
    level: str = ""  # low, fair, good or high, for the colour
    detail: str = ""  # how it was computed
    reason: str = ""  # why it is unknown


def job_bars(row: Row, now: int) -> dict[str, UsageBar | None]:
    """The bars of a run by `cpu`, `memory`, `gpu` and `time`; None without GPUs."""
    gpu = explain.gpu_ratio(row)
    return {
        "cpu": efficiency_bar(explain.cpu_ratio(row)),
        "memory": efficiency_bar(explain.memory_ratio(row)),
        "gpu": efficiency_bar(gpu) if gpu else None,
        "time": efficiency_bar(explain.time_ratio(row, now)),
    }


def efficiency_bar(measured: Efficiency | EfficiencyRatio) -> UsageBar:
    """An efficiency with its colour."""
    name = RESOURCE_TITLES[measured.what]
    if measured.ratio is None:
        return UsageBar(name, None, reason=measured.missing)
    until = "" if measured.until_time is None else "; measured only until some time before its end"
    shown_level, detail = level(measured.what, measured.ratio), measured.formula + until
    if shown_level == "high" and measured.reclaimable:
        return UsageBar(name, measured.ratio, "good", f"{detail}; {_RECLAIMABLE}")
    return UsageBar(name, measured.ratio, shown_level, detail)


def level(what: str, ratio: float) -> str:
    """The level of a ratio as it is shown, in whole per cents: low, fair, good or high."""
    limits, ratio = thresholds(), round(ratio, 2)
    if what in ("memory", "time") and ratio > limits.near_limit:
        return "high"
    if what == "time":
        return "good"
    return "low" if ratio < limits.low_use else "fair" if ratio < limits.fair_use else "good"


def gpu_cell_class(ratio: float | None) -> str:
    if ratio is None:
        return "unknown"
    return "idle" if ratio < thresholds().idle_gpu else level("gpu", ratio)


def sums_bar(sums: Row, what: str) -> UsageBar:
    """The bar of `cpu`, `memory` or `gpu` for sums over days."""
    ratio = efficiency(sums, what)
    if ratio is None:
        return UsageBar(RESOURCE_TITLES[what], None, reason="not measured")
    return UsageBar(
        RESOURCE_TITLES[what], ratio, level(what, ratio), "of the allocation that was measured"
    )


def compare_parts(
    parts: Mapping[str, float | None], total: float | None = None
) -> dict[str, UsageBar]:
    """The bars of several parts with similar values, such as nodes or GPUs, by their names.

    They are relative to `total`, or to the largest; far below the mean, they are low.
    """
    known_values = [value for value in parts.values() if value is not None]
    largest = total or max(known_values, default=0.0)
    mean = sum(known_values) / len(known_values) if known_values else 0.0
    bars = {}
    for name, value in parts.items():
        if value is None or largest <= 0:
            bars[name] = UsageBar(name, None, reason="not measured")
            continue
        compared_level = "low" if value < thresholds().uneven_use * mean else "good"
        bars[name] = UsageBar(name, value / largest, compared_level)
    return bars
