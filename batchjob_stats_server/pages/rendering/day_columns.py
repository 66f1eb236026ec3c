"""Renders charts of days: stacked columns, and the same as a table.

Functions are several times as fast as templates here, since a chart has hundreds of numbers.
"""

from markupsafe import Markup, escape

from batchjob_stats_server.pages.rendering import fragments, template_filters
from batchjob_stats_server.pages.rendering.charts import (
    DAY_CHART_HEIGHT,
    DAY_CHART_WIDTH,
    DayBar,
    DayChart,
)

_MAX_LABELS = 8  # maximum days with a date below
_LABEL_WIDTH = 64.0
_QUARTERS = (0, 0.25, 0.5, 0.75, 1)


def day_columns(chart: DayChart, heading: str) -> Markup:
    """Render the chart; `heading` is the id of the heading that names it."""
    title = escape(chart.title)
    label_every = max(1, -(-len(chart.columns) // _MAX_LABELS))
    bars = "".join(
        _column(chart, column, labelled=not index % label_every)
        for index, column in enumerate(chart.columns)
    )
    return fragments.trusted_html(
        f'<figure class="chart"><figcaption>{title}{_legend(chart)}</figcaption>\n'
        f'<div class="scroll" role="group" aria-labelledby="{heading}" tabindex="0">\n'
        f'<svg class="columns" viewBox="-64 -8 {DAY_CHART_WIDTH + 72} {DAY_CHART_HEIGHT + 32}" '
        f'role="img" aria-label="{title} by day; the table below has the numbers">\n'
        f"{_scale(chart)}{bars}</svg></div>\n"
        f"<details><summary>Show as a table</summary>{_data_table(chart)}</details></figure>"
    )


def _legend(chart: DayChart) -> str:
    if len(chart.segments) < 2:
        return ""
    keys = (
        f'<span class="key {segment.colour}">{escape(segment.name)}</span>'
        for segment in chart.segments
    )
    return ": " + "".join(keys)


def _scale(chart: DayChart) -> str:
    lines = ((fraction, DAY_CHART_HEIGHT * (1 - fraction)) for fraction in _QUARTERS)
    return "".join(
        f'<line class="grid" x1="0" x2="{DAY_CHART_WIDTH}" y1="{y}" y2="{y}"/>'
        f'<text x="-6" y="{y + 4}" text-anchor="end">'
        f"{escape(chart.format_value(chart.top * fraction)) if fraction else '0'}</text>\n"
        for fraction, y in lines
    )


def _column(chart: DayChart, column: DayBar, *, labelled: bool) -> str:
    day, x = template_filters.date(column.day), column.hit_area.x
    description = ", ".join(
        f"{escape(chart.format_value(value))} {escape(segment.name)}"
        for segment, value in zip(chart.segments, column.values, strict=True)
    )
    boxes = "".join(
        f'<rect class="part {segment.colour}" x="{box.x}" y="{box.y}" width="{box.width}" '
        f'height="{box.height}"/>'
        for segment, box in zip(chart.segments, column.boxes, strict=True)
        if box.height
    )
    label = _label(day, x) if labelled else ""
    return (
        f'<g class="column"><title>{day}: {description}</title><rect class="hit" x="{x}" y="0" '
        f'width="{column.hit_area.width}" height="{DAY_CHART_HEIGHT}"/>{boxes}</g>{label}\n'
    )


def _label(day: str, x: float) -> str:
    """The date below a column; near the right edge, it is aligned with the edge."""
    if x > DAY_CHART_WIDTH - _LABEL_WIDTH:
        x, anchor = DAY_CHART_WIDTH, ' text-anchor="end"'
    else:
        anchor = ""
    return f'<text x="{x}" y="{DAY_CHART_HEIGHT + 16}"{anchor}>{day}</text>'


def _data_table(chart: DayChart) -> str:
    headings = "".join(
        f'<th scope="col" class="n">{escape(segment.name)}</th>' for segment in chart.segments
    )
    rows = "".join(
        f'<tr><th scope="row">{template_filters.date(column.day)}</th>'
        + "".join(
            f'<td class="n">{escape(chart.format_value(value))}</td>' for value in column.values
        )
        + "</tr>"
        for column in chart.columns
    )
    return (
        f'<table><caption class="visually-hidden">{escape(chart.title)} by day</caption>'
        f'<thead><tr><th scope="col">Day (UTC)</th>{headings}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
