"""What is wrong with what a place shows, given the truth and what could be known by then."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from tests.life.places import NODES, STORED, Shown
from tests.life.truth import Subject, Use

_ROUNDED = 0.0051  # of a ratio, as pages write it
_FLOWS = ("cpus_in_use", "written_per_second", "power_watts")  # over a few scrapes
_FIGURES = (
    "cpu_seconds", "memory_bytes", "gpu_ratio", "written_bytes", "energy_joules", "gpus_in_use",
    "present_gpu_ratio", "recent_gpu_ratio", *_FLOWS,
)  # fmt: skip
_ACCOUNTED = ("cpu_seconds", "memory_bytes", "cpu_efficiency", "memory_efficiency")
_RATIOS = ("cpu_efficiency", "memory_efficiency")


class Known(NamedTuple):
    """What a place may be expected to know of a run at a moment."""

    state: str
    since: int | None  # it shows the run as of this time, or later; None: nothing is known yet
    stored: int | None = None  # the same of places that show what the poller has measured
    node: int | None = None  # the same of places that show what nodes see; None: now
    coverage: float = 1.0
    least: float | None = None  # coverage; None: it is as above
    final: bool | None = False  # None: it may be by now
    ends: bool = True  # whether the places know that a job ended that has
    seconds: float = 0.0  # that it took to look


def faults(place: str, shown: Shown, run: Subject, known: Known, now: int) -> Iterator[str]:
    """One line for each figure that is not true, is older than it need be, or is missing."""
    since = known.stored if place in STORED else known.since
    if place in NODES and now > run.start:
        since = min(now, run.end) if known.node is None else known.node
    if shown.get("state", known.state) != known.state:
        yield f"state: {shown['state']} instead of {known.state}"
    if since is None:
        for name in (*_FIGURES, *_RATIOS, "until"):
            if shown.get(name) is not None and not (name == "until" and known.since is not None):
                yield f"{name}: {shown[name]} of which nothing can be known"
        return
    yield from _age(place, shown, run, known, since, now)
    for name in (*_FIGURES, *_RATIOS):
        if name in shown:
            yield from _figure(place, name, shown, run, known, since, now)


def _age(
    place: str, shown: Shown, run: Subject, known: Known, since: int, now: int
) -> Iterator[str]:  # fmt: skip
    accounted = shown.get("basis") == "accounting"
    if "until" in shown and not accounted:
        until, latest = shown["until"], min(now, run.end) if known.ends else now
        if until is None or not since - run.late(since) <= until <= latest:
            yield f"until: {until}, though {since} is known, at {now}"
    if "coverage" in shown and not accounted:
        coverage, at = shown["coverage"], min(shown.get("until") or since, run.end)
        slack = 0.005 + 2 * (run.interval + 1) / max(1.0, run.active(at))
        expected = 1.0 if place in STORED and not known.ends else known.coverage
        least = expected if known.least is None else min(expected, known.least)
        if now >= run.end and known.ends:  # of its whole life
            expected *= (at - run.start) / (run.end - run.start)
            least *= (at - run.start) / (run.end - run.start)
        if coverage is None or not least - slack <= coverage <= expected + slack:
            yield f"coverage: {coverage} instead of {expected:.3f}"
    if "final" in shown and known.final is not None and shown["final"] != known.final:
        yield f"final: {shown['final']}"
    if shown.get("elapsed") is not None and known.ends:
        elapsed = run.active(now)
        if abs(shown["elapsed"] - elapsed) > 2 + known.seconds:
            yield f"elapsed: {shown['elapsed']} instead of {elapsed}"


def _figure(
    place: str, name: str, shown: Shown, run: Subject, known: Known, since: int, now: int
) -> Iterator[str]:  # fmt: skip
    value = shown[name]
    if math.isnan(getattr(run.used(since), name) or 0.0):
        return
    has = getattr(run.used(since), name) is not None
    if value is None or not has:
        if value is not None:
            yield f"{name}: {value:g}, which it does not have"
        elif has:
            yield f"{name}: not shown, though {since} is known"
        return
    accounted = shown.get("basis") == "accounting" and name in _ACCOUNTED
    if accounted and run.accounting_error and name.startswith("memory"):
        return  # it is of another kind there
    latest = min(now, run.end)
    since, latest = _span(name, shown, run, since, latest, accounted)
    moments = [
        max(run.start + 1, since - run.late(since)),
        *range(since, latest, max(1, run.interval // 3)),
        latest,
    ]
    truths = [_of(name, run.used(at, as_seen=not accounted), known) for at in moments]
    slack = _ROUNDED if name.endswith(("ratio", "efficiency")) else 0.0
    low, high = min(truths), max(truths)
    if name == "cpu_efficiency" and known.least:
        high *= known.coverage / known.least
    if name == "cpu_efficiency" and not known.final and not accounted:
        # Its counters are of a scrape ago, its time is of now.
        use = run.used(moments[0], as_seen=True)
        before = use.cpu_seconds / (use.cpus * max(1.0, run.active(since)))
        low = min(low, before)
        if place in STORED or since < min(now, run.end):
            # And nobody tells when a job was suspended.
            paused = run.paused(now)
            active = max(1.0, run.active(since))
            low = min(low, before * active / (active + paused))
            high *= 1 + 1.1 * paused / max(1.0, run.active(now))
    slack += _slack(name, run, accounted) * high + run.counting_errors.get(name, 0.0)
    if not low - slack <= value <= high + slack:
        yield f"{name}: {value:g}, not between {low:g} and {high:g}"


def _span(
    name: str, shown: Shown, run: Subject, since: int, latest: int, accounted: bool
) -> tuple[int, int]:
    """From when to when the figure may be; a place that says of when it speaks is held to that."""
    if accounted:
        return run.end, run.end
    if shown.get("until"):
        since, latest = int(min(shown["until"], run.end)), math.ceil(min(shown["until"], run.end))
    # A rate lacks what was before its first sample.
    return since, latest + run.interval + 1 if name in _FLOWS else latest


def _slack(name: str, run: Subject, accounted: bool) -> float:
    if name in _FLOWS:
        return 0.1  # rates are extrapolated to the borders of their time
    return max(0.004, run.accounting_error if accounted else 0.0)


def _of(name: str, truth: Use, known: Known) -> float:
    value = float(getattr(truth, name))
    # The efficiency of what was seen is that of the time for which it was seen.
    return value / known.coverage if name == "cpu_efficiency" and known.ends else value
