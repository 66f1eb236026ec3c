"""Charts of days: stacked columns, and the same as a table.

Functions write them: a chart has hundreds of numbers, and a template takes several times as long.
"""

from markupsafe import Markup, escape

from batchjob_stats_server.pages.rendering import fragments, template_filters
from batchjob_stats_server.pages.rendering.charts import (
    DAY_CHART_HEIGHT,
    DAY_CHART_WIDTH,
    DayBar,
    DayChart,
)

_LABELS = 8  # maximum days with a date below
_LABEL_WIDTH = 64.0
_QUARTERS = (0, 0.25, 0.5, 0.75, 1)


def day_columns(chart: DayChart, heading: str) -> Markup:
    """The chart; `heading`: the id of the heading that names it."""
    title = escape(chart.title)
    label_every = max(1, -(-len(chart.columns) // _LABELS))
    drawn = "".join(
        _column(chart, column, labelled=not place % label_every)
        for place, column in enumerate(chart.columns)
    )
    return fragments.html(
        f'<figure class="chart"><figcaption>{title}{_keys(chart)}</figcaption>\n'
        f'<div class="scroll" role="group" aria-labelledby="{heading}" tabindex="0">\n'
        f'<svg class="columns" viewBox="-64 -8 {DAY_CHART_WIDTH + 72} {DAY_CHART_HEIGHT + 32}" '
        f'role="img" aria-label="{title} by day; the table below has the numbers">\n'
        f"{_scale(chart)}{drawn}</svg></div>\n"
        f"<details><summary>Show as a table</summary>{_table(chart)}</details></figure>"
    )


def _keys(chart: DayChart) -> str:
    if len(chart.parts) < 2:
        return ""
    keys = (f'<span class="key {part.colour}">{escape(part.name)}</span>' for part in chart.parts)
    return ": " + "".join(keys)


def _scale(chart: DayChart) -> str:
    lines = ((part, DAY_CHART_HEIGHT * (1 - part)) for part in _QUARTERS)
    return "".join(
        f'<line class="grid" x1="0" x2="{DAY_CHART_WIDTH}" y1="{y}" y2="{y}"/>'
        f'<text x="-6" y="{y + 4}" text-anchor="end">'
        f"{escape(chart.write(chart.top * part)) if part else '0'}</text>\n"
        for part, y in lines
    )


def _column(chart: DayChart, column: DayBar, *, labelled: bool) -> str:
    day, x = template_filters.date(column.day), column.box.x
    told = ", ".join(
        f"{escape(chart.write(value))} {escape(part.name)}"
        for part, value in zip(chart.parts, column.values, strict=True)
    )
    boxes = "".join(
        f'<rect class="part {part.colour}" x="{box.x}" y="{box.y}" width="{box.width}" '
        f'height="{box.height}"/>'
        for part, box in zip(chart.parts, column.parts, strict=True)
        if box.height
    )
    label = _label(day, x) if labelled else ""
    return (
        f'<g class="column"><title>{day}: {told}</title><rect class="hit" x="{x}" y="0" '
        f'width="{column.box.width}" height="{DAY_CHART_HEIGHT}"/>{boxes}</g>{label}\n'
    )


def _label(day: str, x: float) -> str:
    """Below a column; one near the right edge ends there."""
    if x > DAY_CHART_WIDTH - _LABEL_WIDTH:
        x, anchor = DAY_CHART_WIDTH, ' text-anchor="end"'
    else:
        anchor = ""
    return f'<text x="{x}" y="{DAY_CHART_HEIGHT + 16}"{anchor}>{day}</text>'


def _table(chart: DayChart) -> str:
    heads = "".join(f'<th scope="col" class="n">{escape(part.name)}</th>' for part in chart.parts)
    rows = "".join(
        f'<tr><th scope="row">{template_filters.date(column.day)}</th>'
        + "".join(f'<td class="n">{escape(chart.write(value))}</td>' for value in column.values)
        + "</tr>"
        for column in chart.columns
    )
    return (
        f'<table><caption class="visually-hidden">{escape(chart.title)} by day</caption>'
        f'<thead><tr><th scope="col">Day (UTC)</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
