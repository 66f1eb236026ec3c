"""How much of its allocation a job used, as a bar with a colour."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchjob.judgements import thresholds
from batchjob.quantities.curves import (
    CPU,
    GPU_MEMORY,
    GPU_UTILIZATION,
    MEMORY,
    PRESSURE_IO,
    PRESSURE_MEMORY,
    Curve,
)
from batchjob_stats_db.queries.operators import efficiency
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.conditions import FactValues
from batchjob_stats_server.report.model import Efficiency, Row
from batchjob_stats_server.report.rules import AdviceRule

_RECLAIMABLE = "the kernel reclaims page cache, and the job was not short of memory"
_LEAST_JUDGED_SECONDS = 60.0  # of an ended job; its start takes a part of that
RESOURCE_TITLES = {"cpu": "CPU", "memory": "Memory", "gpu": "GPU", "time": "Time"}


class UsageBar(NamedTuple):
    """A fraction, or why it is unknown."""

    name: str
    ratio: float | None  # may be above 1
    level: str = ""  # low, fair, good, high or plain, for the colour
    detail: str = ""  # how it was computed
    reason: str = ""  # why it is unknown


def job_bars(row: Row, now: int) -> dict[str, UsageBar | None]:
    """The bars of a run by `cpu`, `memory`, `gpu` and `time`; None without GPUs."""
    gpu = explain.gpu_ratio(row)
    return {
        "cpu": job_bar(explain.cpu_ratio(row), row, now),
        "memory": job_bar(explain.memory_ratio(row), row, now),
        "gpu": job_bar(gpu, row, now) if gpu else None,
        "time": efficiency_bar(explain.time_ratio(row, now)),
    }


def job_bar(measured: Efficiency, row: Row, now: int) -> UsageBar:
    """Its colour blames no job that is young, or was short, or that asked for no memory."""
    bar = efficiency_bar(measured)
    if bar.level not in ("low", "fair"):
        return bar
    least = thresholds().idle_after if row["end_time"] is None else _LEAST_JUDGED_SECONDS
    is_young = (explain.elapsed_seconds(row, now) or 0) < least
    is_unasked = measured.what == "memory" and not row["allocated_memory_bytes"]
    return bar._replace(level="plain") if is_young or is_unasked else bar


def efficiency_bar(measured: Efficiency) -> UsageBar:
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


PlotZone = Mapping[str, str | float]
"""Values on a `side` (below, above) of a `ratio` of the plot's limit; `words` for the legend."""


def _plot_zone(words: str, side: str, ratio: float) -> PlotZone:
    return {"words": words, "side": side, "ratio": ratio}


# A curve, the rule whose threshold its plot shows, the quantity in the rule (a ratio, or a multiple
# of another quantity), and what the legend says. For each curve and side, the first rule that
# applies to the job counts.
_RULE_ZONES: tuple[tuple[Curve, str, str, str], ...] = (
    (CPU, "low-cpu", "cpu_ratio", "little used"),
    (CPU, "cpu-idle", "cpu_ratio", "little used"),
    (MEMORY, "memory-oversized", "memory_ratio", "little used"),
    (MEMORY, "memory-near-limit", "working_set", "nearly full"),
    (GPU_UTILIZATION, "gpu-low", "gpu_ratio", "little used"),
    (GPU_MEMORY, "gpu-memory-near-limit", "gpu_memory_ratio", "nearly full"),
    (PRESSURE_MEMORY, "memory-pressure", "memory_waiting_ratio", "waits for memory"),
    (PRESSURE_IO, "io-bound", "io_waiting_ratio", "waits for storage"),
)
_SIDES = {operator.lt: "below", operator.le: "below", operator.gt: "above", operator.ge: "above"}


def job_zones(rules: Sequence[AdviceRule], values: FactValues) -> dict[str, list[PlotZone]]:
    """The zones of each curve, by its name, from the rules that apply to the job."""
    by_id = {rule.id: rule for rule in rules if rule.applies.holds(values)}
    zones_by_curve: dict[str, list[PlotZone]] = {}
    for curve, rule_id, quantity, words in _RULE_ZONES:
        rule = by_id.get(rule_id)
        zone = _zone(rule, quantity, words) if rule else None
        zones = zones_by_curve.setdefault(curve.name, [])
        if zone and zone["side"] not in {each["side"] for each in zones}:
            zones.append(zone)
    return zones_by_curve


def _zone(rule: AdviceRule, quantity: str, words: str) -> PlotZone | None:
    for each in rule.when.comparisons():
        if each.name == quantity and isinstance(each.constant, float):
            # A quantity is compared with a threshold, or with a multiple of the plot's limit.
            factor = getattr(thresholds(), each.other, 1.0) if each.other else 1.0
            side = _SIDES.get(each.compare)
            return _plot_zone(words, side, each.constant * factor) if side else None
    return None


def node_zones() -> Mapping[str, Sequence[PlotZone]]:
    """The zones of the plots of a node, with the thresholds of the colours of its GPU cells."""
    return {
        "memory": [_plot_zone("nearly full", "above", thresholds().near_limit)],
        "gpu_utilization": [_plot_zone("little used", "below", thresholds().low_use)],
    }


def as_json(zones: Mapping[str, Sequence[PlotZone]], curves: Sequence[str]) -> str:
    """The zones of a plot's curves, for the script that draws it."""
    return json.dumps([zone for name in curves for zone in zones.get(name, ())])
