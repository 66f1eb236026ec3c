"""Charts: their geometry in SVG user units, and stacked columns of days as HTML."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import NamedTuple

from markupsafe import Markup, escape

from batchjob.runtime.times import calendar_time
from batchjob_stats_db.days import DAY
from batchjob_stats_server.pages.rendering import template_filters

DURATION_STEPS = (  # seconds
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(day * DAY for day in (1, 2, 5, 7, 14, 30, 60, 90, 180, 365)),
)


def round_step(highest: float, unit: float = 1.0, steps: Sequence[float] = ()) -> float:
    """The distance between the lines of a readable scale, of which at most five are needed.

    It is one of `steps`, or else 1, 2 or 5 times a power of ten of the unit.
    """
    least = highest / 5 * (1 - 1e-9)
    if found := next((step for step in steps if step >= least), None):
        return found
    if least <= 0 or not math.isfinite(least):
        return unit
    power = 10.0 ** math.floor(math.log10(least / unit)) * unit
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least)


Segments = Mapping[str, str]
"""The values that a column stacks, from bottom to top: their names, and their CSS classes."""

DAY_CHART_WIDTH, DAY_CHART_HEIGHT = 720.0, 160.0
HOUR_CHART_WIDTH = 360.0
_MAX_LABELS = 8  # maximum days with a date below
_CHARACTER_WIDTH = 6.4


def day_chart(
    heading: str, title: str, segments: Segments, values: Mapping[int, tuple[float, ...]],
    since: int, until: int, format_value: Callable[[float], str], unit: float = 1.0,
    steps: Sequence[float] = (), by: str = "day",
) -> Markup | None:  # fmt: skip
    """Stacked columns of the values of segments by day, and the same as a table; None if all are 0.

    `heading`: the id of the heading that names it; `unit` and `steps` are those of `round_step`;
    `by`: day, in UTC, or hour.
    Functions are several times as fast as templates here: a chart has hundreds of numbers.
    """
    zeros = (0.0,) * len(segments)
    length, chart_width = (DAY, DAY_CHART_WIDTH) if by == "day" else (3600, HOUR_CHART_WIDTH)
    rows = [(begin, values.get(begin, zeros)) for begin in range(since, until, length)]
    highest = max((sum(row) for _, row in rows), default=0.0)
    if highest <= 0:
        return None
    step = round_step(highest, unit, steps)
    lines = [step * number for number in range(math.ceil(highest / step * (1 - 1e-9)) + 1)]
    heights = ((value, round(DAY_CHART_HEIGHT * (1 - value / lines[-1]), 1)) for value in lines)
    scale = "".join(
        f'<line class="grid" x1="0" x2="{chart_width}" y1="{y}" y2="{y}"/>'
        f'<text x="-6" y="{y + 4}" text-anchor="end">'
        f"{escape(format_value(value)) if value else '0'}</text>\n"
        for value, y in heights
    )
    label_every = max(1, -(-len(rows) // _MAX_LABELS))
    bars, table_rows = "", ""
    for index, (begin, row) in enumerate(rows):
        day = template_filters.date(begin) if by == "day" else template_filters.clock(begin)
        texts = [escape(format_value(each)) for each in row]
        x, width = index * chart_width / len(rows), chart_width / len(rows)
        boxes = _boxes(segments, row, lines[-1], x, width)
        names = ", ".join(
            f"{text} {escape(name)}" for text, name in zip(texts, segments, strict=True)
        )
        bars += (
            f'<g class="column"><title>{day}: {names}</title><rect class="hit" x="{x}" y="0" '
            f'width="{width}" height="{DAY_CHART_HEIGHT}"/>{boxes}</g>'
            f"{'' if index % label_every else _label(day, x, chart_width, begin)}\n"
        )
        cells = "".join(f'<td class="n">{text}</td>' for text in texts)
        table_rows += f'<tr><th scope="row">{day}</th>{cells}</tr>'
    title = escape(title)
    keys = "".join(
        f'<span class="key {css_class}">{escape(name)}</span>'
        for name, css_class in segments.items()
    )
    headings = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in segments)
    return template_filters.trusted_html(
        f'<figure class="chart"><figcaption>{title}{f": {keys}" if len(segments) > 1 else ""}'
        f'</figcaption>\n<div class="scroll" role="group" aria-labelledby="{heading}" tabindex="0">'
        f'\n<svg class="columns" viewBox="-64 -8 {chart_width + 72} {DAY_CHART_HEIGHT + 32}" '
        f'role="img" aria-label="{title} by {by}; the table below has the numbers">\n'
        f"{scale}{bars}</svg></div>\n<details><summary>Show as a table</summary>"
        f'<table><caption class="visually-hidden">{title} by {by}</caption>'
        f'<thead><tr><th scope="col">{by.capitalize()} (UTC)</th>{headings}</tr></thead>'
        f"<tbody>{table_rows}</tbody></table></details></figure>"
    )


def _boxes(segments: Segments, values: Sequence[float], top: float, x: float, width: float) -> str:
    """The boxes of a day, stacked from bottom to top."""
    gap, y, boxes = min(2.0, width * 0.2), DAY_CHART_HEIGHT, ""
    for css_class, value in zip(segments.values(), values, strict=True):
        height = DAY_CHART_HEIGHT * min(value / top, 1)
        y -= height
        if round(height, 2):
            boxes += (
                f'<rect class="part {css_class}" x="{round(x + gap / 2, 2)}" y="{round(y, 2)}" '
                f'width="{round(width - gap, 2)}" height="{round(height, 2)}"/>'
            )
    return boxes


def _label(text: str, x: float, width: float, time: int) -> str:
    """The date, or the time of day, below a column; near the right edge, it ends there."""
    if x > width - _CHARACTER_WIDTH * len(text):
        x, anchor = width, ' text-anchor="end"'
    else:
        anchor = ""
    if ":" in text:  # times.js writes it in the reader's zone
        anchor += f' data-time="{template_filters.iso(time)}"'
    return f'<text x="{x}" y="{DAY_CHART_HEIGHT + 16}"{anchor}>{text}</text>'


class LaneSpan(NamedTuple):
    """A span from `start` to `end`, in a lane of its own during that time."""

    item: int  # index of the item
    lane: int
    x: float
    width: float


def assign_lanes(
    spans: Sequence[tuple[float, float]], since: float, until: float, width: float
) -> list[LaneSpan]:
    """Place spans in as few lanes as possible, the earliest first; each is cut to the window."""
    lane_ends: list[float] = []
    lane_spans = []
    scale = width / (until - since) if until > since else 0
    for item in sorted(range(len(spans)), key=lambda index: spans[index]):
        start, end = max(spans[item][0], since), min(spans[item][1], until)
        lane = next(
            (lane for lane, end_time in enumerate(lane_ends) if end_time <= start), len(lane_ends)
        )
        if lane == len(lane_ends):
            lane_ends.append(end)
        lane_ends[lane] = end
        x = (start - since) * scale
        lane_spans.append(
            LaneSpan(item, lane, round(x, 2), round(max((end - start) * scale, 1.5), 2))
        )
    return lane_spans


_TICK_STEPS = (  # seconds
    *(300, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 2 * 86400, 7 * 86400, 30 * 86400),
)


def tick_times(since: int, until: int, max_ticks: int = 8) -> list[int]:
    """Round times (UTC) in a window, at most this many."""
    step = next(
        (step for step in _TICK_STEPS if (until - since) / step <= max_ticks), _TICK_STEPS[-1]
    )
    return list(range(-(-since // step) * step, until + 1, step))


def tick_label(time: int, since: int, until: int) -> str:
    """The label of a tick: the time of day, or the day if that is more informative (UTC)."""
    day_and_time = calendar_time(time, UTC)
    if day_and_time is None:
        return f"@{time}"
    return (
        f"{day_and_time:%m-%d}"
        if until - since > 3 * 86400 or not time % 86400
        else f"{day_and_time:%H:%M}"
    )
