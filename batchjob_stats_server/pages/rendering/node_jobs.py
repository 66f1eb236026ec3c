"""The jobs of a node, as bars on its time line and as rows of a table.

Functions write them: there are hundreds, and a loop in a template takes several times as long.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from batchjob_stats_server.pages.rendering import fragments, links, template_filters, usage_bars
from batchjob_stats_server.pages.rendering.charts import Stay
from batchjob_stats_server.pages.rendering.fragments import escaped, words
from batchjob_stats_server.pages.rendering.template_filters import absent
from batchjob_stats_server.report import explain

Row = Mapping[Any, Any]

_LANE = 22  # height of a lane of the timeline
_TOLD_WIDTH = 46  # minimum width of a bar with text
_UNTOLD = "not reported by the scheduler"


def bars(stays: Sequence[Stay], rows: Sequence[Row], colours: Sequence[int], now: int) -> Markup:
    """A bar for each stay; those after `rows` are jobs that the caller may not see."""
    return fragments.html(
        "".join(
            _bar(stay, rows[stay.item], colours[stay.item], now)
            if stay.item < len(rows)
            else _bar_of_another(stay)
            for stay in stays
        )
    )


def _bar_of_another(stay: Stay) -> str:
    return (
        f'<g><title>A job of another user</title><rect class="stay another" x="{stay.x}" '
        f'y="{stay.lane * _LANE}" width="{stay.width}" height="19" rx="2"/></g>\n'
    )


def _bar(stay: Stay, row: Row, colour: int, now: int) -> str:
    jobid, user = escaped(row["jobid"]), words(row["username"])
    seconds = explain.elapsed(row, now)
    lasting = absent() if seconds is None else template_filters.lasting(seconds)
    told = (
        f'<text class="in" x="4" y="13.5">{user} {jobid}</text>' if stay.width > _TOLD_WIDTH else ""
    )
    return (
        f'<a href="{escape(links.job(row))}" tabindex="-1"><title>{jobid}, {user}: '
        f"{words(row['name'])}, {row['state'].lower()}, {lasting}</title>\n"
        f'<svg x="{stay.x}" y="{stay.lane * _LANE}" width="{stay.width}" height="19">'
        f'<rect class="stay c{colour}" width="{stay.width}" height="19" rx="2"/>{told}</svg></a>\n'
    )


def table_rows(rows: Sequence[Row]) -> Markup:
    """A row for each job, with its share of the node."""
    return fragments.html("".join(map(_table_row, rows)))


def _table_row(row: Row) -> str:
    account, end, gpus = row["account"], row["end_time"], row["share_gpus"]
    cpus, memory = row["share_cpus"], row["share_memory_bytes"]
    gpu = explain.gpu_ratio(row)
    return (
        f'<tr><th scope="row">{fragments.job_link(row)}</th>'
        f'<td class="name">{fragments.name(row)}</td><td>{fragments.state(row["state"])}</td>'
        f"<td>{fragments.user_link(row['username'])}</td>"
        f"<td>{words(account) if account else absent('no account is known')}</td>"
        f"<td>{template_filters.moment(row['start_time'], False)}</td>"
        f"<td>{absent('it runs') if end is None else template_filters.moment(end, False)}</td>"
        f'<td class="n">{absent(_UNTOLD) if cpus is None else template_filters.number(cpus)}</td>'
        f'<td class="n">{absent(_UNTOLD) if memory is None else template_filters.size(memory)}</td>'
        f'<td class="n">{template_filters.number(gpus) if gpus else ""}</td>'
        f"<td>{fragments.bar(usage_bars.shown(explain.cpu_ratio(row)))}</td>"
        f"<td>{fragments.bar(usage_bars.shown(explain.memory_ratio(row)))}</td>"
        f"<td>{fragments.bar(usage_bars.shown(gpu) if gpu else None)}</td></tr>\n"
    )
