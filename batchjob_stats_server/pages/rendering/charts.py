"""Geometry of drawings in their own units; templates draw them as SVG."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle; y grows downwards."""

    x: float
    y: float
    width: float
    height: float


def line(points: Sequence[tuple[float, float]], width: float, height: float, top: float) -> str:
    """An SVG path through points (time, value), `top` at the upper edge; gaps are left open.

    A gap is where more than three times the usual time lies between two points.
    """
    if not points or top <= 0:
        return ""
    begin, end = points[0][0], points[-1][0]
    steps = sorted(after[0] - before[0] for before, after in pairwise(points))
    usual = steps[len(steps) // 2] if steps else 0
    scale = width / (end - begin) if end > begin else 0
    pieces = []
    last = None
    for at, value in points:
        x = (at - begin) * scale
        y = height * (1 - min(max(value / top, 0), 1))
        pen = "L" if last is not None and at - last <= 3 * usual else "M"
        pieces.append(f"{pen}{x:.1f} {y:.1f}")
        last = at
    return "".join(pieces)


def round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten: a readable scale."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


class DayBar(NamedTuple):
    """One day of a chart."""

    day: int
    box: Box  # full height, as a target for the pointer
    parts: tuple[Box, ...]  # from bottom to top
    values: tuple[float, ...]


def columns(
    rows: Sequence[tuple[int, tuple[float, ...]]], width: float, height: float, top: float
) -> list[DayBar]:
    """Stacked columns, one for each (day, values of its parts)."""
    step = width / len(rows) if rows else width
    gap = min(2.0, step * 0.2)
    made = []
    for place, (day, values) in enumerate(rows):
        x, y = place * step + gap / 2, height
        parts = []
        for value in values:
            tall = height * min(value / top, 1) if top > 0 else 0
            y -= tall
            parts.append(Box(round(x, 2), round(y, 2), round(step - gap, 2), round(tall, 2)))
        made.append(DayBar(day, Box(place * step, 0, step, height), tuple(parts), values))
    return made


class BarSegment(NamedTuple):
    """A part of a column."""

    name: str
    colour: str  # a CSS class


DAY_CHART_WIDTH, DAY_CHART_HEIGHT = 720.0, 160.0


class DayChart(NamedTuple):
    """Stacked columns, one per day."""

    title: str
    parts: Sequence[BarSegment]
    columns: Sequence[DayBar]
    top: float
    write: Callable[[float], str]


def day_chart(
    title: str, parts: Sequence[BarSegment], rows: Sequence[tuple[int, tuple[float, ...]]],
    write: Callable[[float], str], unit: float = 1.0,
) -> DayChart | None:  # fmt: skip
    """A chart of (day, values of the parts); None if all are zero.

    `unit`: the unit in which the scale has round numbers.
    """
    highest = max((sum(values) for _, values in rows), default=0.0)
    if highest <= 0:
        return None
    top = round_up(highest / unit) * unit
    drawn = columns(rows, DAY_CHART_WIDTH, DAY_CHART_HEIGHT, top)
    return DayChart(title, parts, drawn, top, write)


class Stay(NamedTuple):
    """A span from `start` to `end`, in a lane of its own during that time."""

    item: int  # index of the item
    lane: int
    x: float
    width: float


def stays(
    spans: Sequence[tuple[float, float]], since: float, until: float, width: float
) -> list[Stay]:
    """Place spans in as few lanes as possible, the earliest first; each is cut to the window."""
    free: list[float] = []
    made = []
    scale = width / (until - since) if until > since else 0
    for item in sorted(range(len(spans)), key=lambda place: spans[place]):
        start, end = max(spans[item][0], since), min(spans[item][1], until)
        lane = next((lane for lane, at in enumerate(free) if at <= start), len(free))
        if lane == len(free):
            free.append(end)
        free[lane] = end
        x = (start - since) * scale
        made.append(Stay(item, lane, round(x, 2), round(max((end - start) * scale, 1.5), 2)))
    return made


_STEPS = (300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 2 * 86400, 7 * 86400, 30 * 86400)


def ticks(since: int, until: int, most: int = 8) -> list[int]:
    """Round times (UTC) in a window, at most this many."""
    step = next((step for step in _STEPS if (until - since) / step <= most), _STEPS[-1])
    return list(range(-(-since // step) * step, until + 1, step))


def tick(at: int, since: int, until: int) -> str:
    """The label of a tick: the time of day, or the day if that is more informative (UTC)."""
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment:%m-%d}" if until - since > 3 * 86400 or not at % 86400 else f"{moment:%H:%M}"
