"""Discrepancies between the figures of a view and the true usage, as far as it can be known."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from tests.life.ground_truth import KnownRun, Usage
from tests.life.views import NODE_VIEWS, STORED_VIEWS, Figures

_ROUNDING = 0.0051  # of ratios on pages
_RATES = ("cpus_in_use", "written_per_second", "power_watts")  # over a few scrapes
_FIGURES = (
    "cpu_seconds", "memory_bytes", "gpu_ratio", "written_bytes", "energy_joules", "gpus_in_use",
    "present_gpu_ratio", "recent_gpu_ratio", *_RATES,
)  # fmt: skip
_ACCOUNTED = ("cpu_seconds", "memory_bytes", "cpu_efficiency", "memory_efficiency")
_RATIOS = ("cpu_efficiency", "memory_efficiency")


class Expectation(NamedTuple):
    """What a view is expected to know about a run at a time."""

    state: str
    known_until: int | None  # or later; None: nothing is known yet
    stored_until: int | None = None  # the same for views of what the poller has measured
    node_until: int | None = None  # the same for views of exporters; None: now
    coverage: float = 1.0
    min_coverage: float | None = None  # None: the same as `coverage`
    final: bool | None = False  # None: either
    end_known: bool = True  # whether views know that an ended job has ended
    read_seconds: float = 0.0  # duration of the reading


def discrepancies(
    view_name: str, figures: Figures, run: KnownRun, expected: Expectation, now: int
) -> Iterator[str]:
    """One line for each figure that is wrong, too old, or missing."""
    known_until = expected.stored_until if view_name in STORED_VIEWS else expected.known_until
    if view_name in NODE_VIEWS and now > run.start:
        known_until = min(now, run.end) if expected.node_until is None else expected.node_until
    if figures.get("state", expected.state) != expected.state:
        yield f"state: {figures['state']} instead of {expected.state}"
    end_seen = not expected.end_known and (expected.known_until or 0) >= run.end
    if figures.get("has_ended", end_seen) != end_seen:
        yield f"has ended: {figures['has_ended']}"
    if known_until is None:
        for name in (*_FIGURES, *_RATIOS, "until"):
            if figures.get(name) is not None and not (
                name == "until" and expected.known_until is not None
            ):
                yield f"{name}: {figures[name]} although nothing can be known"
        return
    yield from _time_discrepancies(view_name, figures, run, expected, known_until, now)
    for name in (*_FIGURES, *_RATIOS):
        if name in figures:
            yield from _figure_discrepancies(
                view_name, name, figures, run, expected, known_until, now
            )


def _time_discrepancies(
    view_name: str, figures: Figures, run: KnownRun, expected: Expectation, known_until: int,
    now: int,
) -> Iterator[str]:  # fmt: skip
    accounted = figures.get("basis") == "accounting"
    if "until" in figures and not accounted:
        until, latest = figures["until"], min(now, run.end) if expected.end_known else now
        if until is None or not known_until - run.max_delay(known_until) <= until <= latest:
            yield f"until: {until}, though {known_until} is known, at {now}"
    if "coverage" in figures and not accounted:
        coverage, at = figures["coverage"], min(figures.get("until") or known_until, run.end)
        tolerance = 0.005 + 2 * (run.interval + 1) / max(1.0, run.active_seconds(at))
        expected_coverage = (
            1.0 if view_name in STORED_VIEWS and not expected.end_known else expected.coverage
        )
        minimum = (
            expected_coverage
            if expected.min_coverage is None
            else min(expected_coverage, expected.min_coverage)
        )
        if now >= run.end and expected.end_known:  # of its whole run time
            expected_coverage *= (at - run.start) / (run.end - run.start)
            minimum *= (at - run.start) / (run.end - run.start)
        if coverage is None or not minimum - tolerance <= coverage <= expected_coverage + tolerance:
            yield f"coverage: {coverage} instead of {expected_coverage:.3f}"
    if "final" in figures and expected.final is not None and figures["final"] != expected.final:
        yield f"final: {figures['final']}"
    if figures.get("elapsed") is not None and expected.end_known:
        elapsed = run.active_seconds(now)
        if abs(figures["elapsed"] - elapsed) > 2 + expected.read_seconds:
            yield f"elapsed: {figures['elapsed']} instead of {elapsed}"


def _figure_discrepancies(
    view_name: str, name: str, figures: Figures, run: KnownRun, expected: Expectation,
    known_until: int, now: int,
) -> Iterator[str]:  # fmt: skip
    value = figures[name]
    if math.isnan(getattr(run.usage_at(known_until), name) or 0.0):
        return
    is_available = getattr(run.usage_at(known_until), name) is not None
    if value is None or not is_available:
        if value is not None:
            yield f"{name}: {value:g}, which is not available"
        elif is_available:
            yield f"{name}: not shown, though {known_until} is known"
        return
    accounted = figures.get("basis") == "accounting" and name in _ACCOUNTED
    if accounted and run.accounting_error and name.startswith("memory"):
        return  # accounting measures it differently
    latest = min(now, run.end)
    known_until, latest = _time_range(name, figures, run, known_until, latest, accounted)
    moments = [
        max(run.start + 1, known_until - run.max_delay(known_until)),
        *range(known_until, latest, max(1, run.interval // 3)),
        latest,
    ]
    true_values = [
        _expected_value(name, run.usage_at(at, as_measured=not accounted), expected)
        for at in moments
    ]
    tolerance = _ROUNDING if name.endswith(("ratio", "efficiency")) else 0.0
    low, high = min(true_values), max(true_values)
    if name == "cpu_efficiency" and expected.min_coverage:
        high *= expected.coverage / expected.min_coverage
    if name == "cpu_efficiency" and not expected.final and not accounted:
        # Its counters are from the last scrape, its time is the current one.
        usage = run.usage_at(moments[0], as_measured=True)
        previous_efficiency = usage.cpu_seconds / (
            usage.cpus * max(1.0, run.active_seconds(known_until))
        )
        low = min(low, previous_efficiency)
        if view_name in STORED_VIEWS or known_until < min(now, run.end):
            # The time of a suspension is not known.
            paused = run.suspended_seconds(now)
            active = max(1.0, run.active_seconds(known_until))
            low = min(low, previous_efficiency * active / (active + paused))
            high *= 1 + 1.1 * paused / max(1.0, run.active_seconds(now))
    tolerance += _tolerance(name, run, accounted) * high + run.counting_errors.get(name, 0.0)
    if not low - tolerance <= value <= high + tolerance:
        yield f"{name}: {value:g}, not between {low:g} and {high:g}"


def _time_range(
    name: str, figures: Figures, run: KnownRun, known_until: int, latest: int, accounted: bool
) -> tuple[int, int]:
    """The range of times that the figure may be of; a view that displays the time must match it."""
    if accounted:
        return run.end, run.end
    if figures.get("until"):
        known_until, latest = (
            int(min(figures["until"], run.end)),
            math.ceil(min(figures["until"], run.end)),
        )
    # A rate lacks what was before its first sample.
    return known_until, latest + run.interval + 1 if name in _RATES else latest


def _tolerance(name: str, run: KnownRun, accounted: bool) -> float:
    if name in _RATES:
        return 0.1  # rates are extrapolated to the borders of their range
    return max(0.004, run.accounting_error if accounted else 0.0)


def _expected_value(name: str, usage: Usage, expected: Expectation) -> float:
    value = float(getattr(usage, name))
    # The efficiency is relative to the time that was measured.
    return value / expected.coverage if name == "cpu_efficiency" and expected.end_known else value
