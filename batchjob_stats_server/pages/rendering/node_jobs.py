"""Renders the jobs of a node, as bars of its timeline and as rows of a table.

Functions are several times as fast as a loop in a template; there are hundreds of jobs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from batchjob_stats_server.pages.rendering import fragments, links, template_filters, usage_bars
from batchjob_stats_server.pages.rendering.charts import LaneSpan
from batchjob_stats_server.pages.rendering.fragments import escape_id, escape_repeated
from batchjob_stats_server.pages.rendering.template_filters import absent
from batchjob_stats_server.report import explain

Row = Mapping[Any, Any]

_LANE_HEIGHT = 22  # height of a lane of the timeline
_MIN_LABELLED_WIDTH = 46  # minimum width of a bar with text
_NOT_REPORTED = "not reported by the scheduler"


def timeline_bars(
    spans: Sequence[LaneSpan], rows: Sequence[Row], colours: Sequence[int], now: int
) -> Markup:
    """A bar for each span; spans after those of `rows` are jobs that the caller may not see."""
    return fragments.trusted_html(
        "".join(
            _job_bar(span, rows[span.item], colours[span.item], now)
            if span.item < len(rows)
            else _hidden_job_bar(span)
            for span in spans
        )
    )


def _hidden_job_bar(span: LaneSpan) -> str:
    return (
        f'<g><title>A job of another user</title><rect class="stay another" x="{span.x}" '
        f'y="{span.lane * _LANE_HEIGHT}" width="{span.width}" height="19" rx="2"/></g>\n'
    )


def _job_bar(span: LaneSpan, row: Row, colour: int, now: int) -> str:
    jobid, user = escape_id(row["jobid"]), escape_repeated(row["username"])
    seconds = explain.elapsed_seconds(row, now)
    duration = absent() if seconds is None else template_filters.duration(seconds)
    label = (
        f'<text class="in" x="4" y="13.5">{user} {jobid}</text>'
        if span.width > _MIN_LABELLED_WIDTH
        else ""
    )
    return (
        f'<a href="{escape(links.job_path(row))}" tabindex="-1"><title>{jobid}, {user}: '
        f"{escape_repeated(row['name'])}, {row['state'].lower()}, {duration}</title>\n"
        f'<svg x="{span.x}" y="{span.lane * _LANE_HEIGHT}" width="{span.width}" height="19">'
        f'<rect class="stay c{colour}" width="{span.width}" height="19" rx="2"/>{label}</svg></a>\n'
    )


def table_rows(rows: Sequence[Row]) -> Markup:
    """A row for each job, with its share of the node."""
    return fragments.trusted_html("".join(map(_table_row, rows)))


def _table_row(row: Row) -> str:
    account, end, gpus = row["account"], row["end_time"], row["share_gpus"]
    cpus, memory = row["share_cpus"], row["share_memory_bytes"]
    gpu, dash = explain.gpu_ratio(row), absent(_NOT_REPORTED)
    return (
        f'<tr><th scope="row">{fragments.job_link(row)}</th>'
        f'<td class="name">{fragments.job_name(row)}</td>'
        f"<td>{fragments.state_badge(row['state'])}</td>"
        f"<td>{fragments.user_link(row['username'])}</td>"
        f"<td>{escape_repeated(account) if account else absent('no account is known')}</td>"
        f"<td>{template_filters.moment(row['start_time'], False)}</td>"
        f"<td>{absent('it runs') if end is None else template_filters.moment(end, False)}</td>"
        f'<td class="n">{dash if cpus is None else template_filters.number(cpus)}</td>'
        f'<td class="n">{dash if memory is None else template_filters.size(memory)}</td>'
        f'<td class="n">{template_filters.number(gpus) if gpus else ""}</td>'
        f"<td>{fragments.usage_bar(usage_bars.efficiency_bar(explain.cpu_ratio(row)))}</td>"
        f"<td>{fragments.usage_bar(usage_bars.efficiency_bar(explain.memory_ratio(row)))}</td>"
        f"<td>{fragments.usage_bar(usage_bars.efficiency_bar(gpu) if gpu else None)}</td></tr>\n"
    )
