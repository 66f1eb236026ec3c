"""Shaded parts of a plot: wasteful values, or values near a limit."""

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
from batchjob_stats_server.report.conditions import Comparison, FactValues
from batchjob_stats_server.report.rules import AdviceRule


class PlotZone(NamedTuple):
    """Values below, or above, a fraction of the plot's limit."""

    words: str  # text in the legend
    side: str  # below or above
    ratio: float


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
_BELOW, _ABOVE = (operator.lt, operator.le), (operator.gt, operator.ge)


def job_zones(rules: Sequence[AdviceRule], values: FactValues) -> dict[str, list[PlotZone]]:
    """The zones of each curve, by its name, from the rules that apply to the job."""
    by_id = {rule.id: rule for rule in rules if rule.applies.holds(values)}
    zones_by_curve: dict[str, list[PlotZone]] = {}
    for curve, rule_id, quantity, words in _RULE_ZONES:
        rule = by_id.get(rule_id)
        zone = _zone(rule, quantity, words) if rule else None
        zones = zones_by_curve.setdefault(curve.name, [])
        if zone and zone.side not in {each.side for each in zones}:
            zones.append(zone)
    return zones_by_curve


def _zone(rule: AdviceRule, quantity: str, words: str) -> PlotZone | None:
    for each in rule.when.comparisons():
        if each.name == quantity and isinstance(each.constant, float):
            # A quantity is compared with a threshold, or with a multiple of the plot's limit.
            factor = getattr(thresholds(), each.other, 1.0) if each.other else 1.0
            side = _side(each)
            return PlotZone(words, side, each.constant * factor) if side else None
    return None


def _side(comparison: Comparison) -> str:
    if comparison.compare in _BELOW:
        return "below"
    return "above" if comparison.compare in _ABOVE else ""


def node_zones() -> Mapping[str, Sequence[PlotZone]]:
    """The zones of the plots of a node, with the thresholds of the colours of its GPU cells."""
    return {
        "memory": [PlotZone("nearly full", "above", thresholds().near_limit)],
        "gpu_utilization": [PlotZone("little used", "below", thresholds().low_use)],
    }


def as_json(zones: Mapping[str, Sequence[PlotZone]], curves: Sequence[str]) -> str:
    """The zones of a plot's curves, for the script that draws it."""
    return json.dumps([zone._asdict() for name in curves for zone in zones.get(name, ())])
