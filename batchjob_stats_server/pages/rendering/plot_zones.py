"""Shaded parts of a plot: wasteful values, or values near a limit."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchjob.quantities.curves import (
    CPU,
    GPU_MEMORY,
    GPU_UTILIZATION,
    MEMORY,
    PRESSURE_IO,
    PRESSURE_MEMORY,
    Curve,
)
from batchjob_stats_server.pages.rendering.usage_bars import LEVELS
from batchjob_stats_server.report.conditions import Comparison, Values
from batchjob_stats_server.report.rules import AdviceRule


class PlotZone(NamedTuple):
    """Values below, or above, a fraction of the plot's limit."""

    words: str  # text in the legend
    side: str  # below or above
    ratio: float


class _ShownRule(NamedTuple):
    """The rule whose threshold a plot shows."""

    curve: Curve
    rule: str
    quantity: str  # in the rule: a ratio, or a multiple of another quantity
    words: str


# For each curve and side, the first rule that applies to the job counts.
_RULES = (
    _ShownRule(CPU, "low-cpu", "cpu_ratio", "little used"),
    _ShownRule(CPU, "cpu-idle", "cpu_ratio", "little used"),
    _ShownRule(MEMORY, "memory-oversized", "memory_ratio", "little used"),
    _ShownRule(MEMORY, "memory-near-limit", "working_set", "nearly full"),
    _ShownRule(GPU_UTILIZATION, "gpu-low", "gpu_ratio", "little used"),
    _ShownRule(GPU_MEMORY, "gpu-memory-near-limit", "gpu_memory_ratio", "nearly full"),
    _ShownRule(PRESSURE_MEMORY, "memory-pressure", "memory_waiting_ratio", "waits for memory"),
    _ShownRule(PRESSURE_IO, "io-bound", "io_waiting_ratio", "waits for storage"),
)
_BELOW, _ABOVE = (operator.lt, operator.le), (operator.gt, operator.ge)


def of_job(rules: Sequence[AdviceRule], values: Values) -> dict[str, list[PlotZone]]:
    """Name of a curve -> its zones, from the rules that apply to the job."""
    by_id = {rule.id: rule for rule in rules if rule.applies.holds(values)}
    made: dict[str, list[PlotZone]] = {}
    for shown in _RULES:
        zone = _zone(shown, by_id[shown.rule]) if shown.rule in by_id else None
        there = made.setdefault(shown.curve.name, [])
        if zone and zone.side not in {each.side for each in there}:
            there.append(zone)
    return made


def _zone(shown: _ShownRule, rule: AdviceRule) -> PlotZone | None:
    for each in rule.when.comparisons():
        if each.name == shown.quantity and isinstance(each.constant, float):
            side = _side(each)
            return PlotZone(shown.words, side, each.constant) if side else None
    return None


def _side(comparison: Comparison) -> str:
    if comparison.compare in _BELOW:
        return "below"
    return "above" if comparison.compare in _ABOVE else ""


NODE_ZONES: Mapping[str, Sequence[PlotZone]] = {
    "memory": [PlotZone("nearly full", "above", LEVELS["memory"].high)],
    "gpu_utilization": [PlotZone("little used", "below", LEVELS["gpu"].low)],
}
"""Of a node, whose GPU cells have the same colours."""


def as_json(zones: Mapping[str, Sequence[PlotZone]], curves: Sequence[str]) -> str:
    """The zones of a plot's curves, for the script that draws it."""
    return json.dumps([zone._asdict() for name in curves for zone in zones.get(name, ())])
