"""The page of a node: its current state and GPUs, its curves, and its jobs over time."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Response
from markupsafe import escape
from sqlalchemy.engine import RowMapping

from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries import nodes as queries
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_server.api.answers import CostlyRoute
from batchjob_stats_server.api.params import InQuery, QueryParams, Time, Word
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.cluster_readings import NodeGpu, NodeState
from batchjob_stats_server.curves import NODE_PLOTS, node_window
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.clusters import can_see_totals
from batchjob_stats_server.pages.rendering import (
    charts,
    fragments,
    links,
    template_filters,
    usage_bars,
)
from batchjob_stats_server.pages.rendering.fragments import escape_id, escape_repeated
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage
from batchjob_stats_server.pages.rendering.job_table import LISTED_COLUMNS, NOT_REPORTED
from batchjob_stats_server.pages.rendering.template_filters import absent, trusted_html
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import Row

router = APIRouter(include_in_schema=False, route_class=CostlyRoute)

TIMELINE_WIDTH = 960.0
_MAX_JOBS = 300
_LANE_HEIGHT = 22  # height of a lane of the timeline
_MIN_LABELLED_WIDTH = 46  # minimum width of a bar with text
_COLOUR_COUNT = 8
_TIME_COLUMNS = ("id", "start_time", "end_time")  # all that is shown of other users' jobs


class NodeForm(QueryParams):
    """Selects the period that the page shows."""

    since: Time | None = None
    until: Time | None = None


@router.get("/clusters/{cluster}/nodes/{node}")
def node(page: RequestPage, cluster: Word, node: Word, form: InQuery[NodeForm]) -> Response:
    """The visible jobs on a node, as a time line and a table, and its curves."""
    since, until = node_window(form.since, form.until, page.now)
    access, sees_all = page.access, page.access.sees_all(cluster)
    with page.services.reader.connect() as db:
        if cluster not in cluster_names(db):
            raise Problem(404, f"there is no cluster {cluster}")
        rows = queries.jobs_on_node(
            db, access, cluster, node, since, until, _MAX_JOBS + 1, LISTED_COLUMNS
        )
        hidden_spans: list[tuple[int, int | None]] = []
        if not sees_all and can_see_totals(page, cluster):
            visible_ids = {row["id"] for row in rows}
            all_rows = queries.jobs_on_node(
                db, EVERYTHING, cluster, node, since, until, _MAX_JOBS + 1, _TIME_COLUMNS
            )
            hidden_spans = [
                (row["start_time"], row["end_time"])
                for row in all_rows
                if row["id"] not in visible_ids
            ]
    log_jobs_seen(page.principal, f"jobs on {node}", rows)
    has_more, rows = len(rows) > _MAX_JOBS, rows[:_MAX_JOBS]
    duration = until - since
    state, exporter_answers, gpus = _node_status(page, cluster, node, rows)
    if not (rows or hidden_spans or state or exporter_answers) and can_see_totals(page, cluster):
        with page.services.reader.connect() as db:
            if cluster not in queries.clusters_of(db, EVERYTHING, node):
                reason = "no job ran there, and no scheduler or exporter reports it"
                raise Problem(404, f"{cluster} has no node {node}: {reason}")
    return page.render(
        "node.html", uses_plotly=sees_all, cluster=cluster, node=node, rows=rows, has_more=has_more,
        since=since, until=until, state=state, exporter_answers=exporter_answers, gpus=gpus,
        hidden_spans=hidden_spans,
        earlier=(since - duration, since),
        later=(until, until + duration) if until < page.now else None,
        timeline=_timeline(rows, hidden_spans, since, until, page.now), width=TIMELINE_WIDTH,
        is_restricted=not sees_all, has_measurements=sees_all and exporter_answers,
        zones=usage_bars.node_zones(),
        plots=[plot for plot in NODE_PLOTS if gpus or not plot.gpu],
        grafana_url=page.grafana_url(
            "node", since * 1000, until * 1000, cluster=cluster, node=node
        ),
        lookback_days=queries.LOOKBACK_SECONDS // DAY,
        table=trusted_html("".join(_table_row(row, page.now) for row in rows)),
    )  # fmt: skip


def _node_status(
    page: PageRenderer, cluster: str, node: str, rows: Sequence[RowMapping]
) -> tuple[NodeState | None, bool, Sequence[NodeGpu]]:
    """The scheduler's state of a node, whether its exporter answers, and its GPUs.

    Includes only GPUs of which the caller may see all jobs.
    """
    readings, now = page.services.readings, page.services.clock()
    reading = readings.of(cluster, now) if can_see_totals(page, cluster) else None
    if reading is None:
        return None, False, ()
    instance = reading.instance(node)
    gpus = readings.gpus(cluster, instance, now) if instance else ()
    if not page.access.sees_all(cluster):
        running = {row["jobid"] for row in rows if row["end_time"] is None}
        gpus = [gpu for gpu in gpus if gpu.confirmed and gpu.jobids and set(gpu.jobids) <= running]
    return reading.nodes.get(node), bool(instance), gpus


def _timeline(
    rows: Sequence[RowMapping], hidden_spans: Sequence[tuple[int, int | None]], since: int,
    until: int, now: int,
) -> dict[str, Any]:  # fmt: skip
    """The jobs of a node as bars in lanes, coloured by user, and ticks of (x, epoch seconds).

    Functions are several times as fast as a loop in a template; there are hundreds of jobs.
    """
    spans = [(row["start_time"], row["end_time"] or until) for row in rows]
    spans += [(start, end or until) for start, end in hidden_spans]
    placed_spans = charts.assign_lanes(spans, since, until, TIMELINE_WIDTH)
    ticks = [
        (round((time - since) * TIMELINE_WIDTH / (until - since), 1), time)
        for time in charts.tick_times(since, until)
    ]
    users = list(dict.fromkeys(row["username"] for row in reversed(rows)))
    bars = ""
    for span in placed_spans:
        if span.item < len(rows):
            row = rows[span.item]
            bars += _job_bar(span, row, users.index(row["username"]) % _COLOUR_COUNT, now)
        else:  # a job that the caller may not see
            bars += (
                '<g><title>A job of another user</title><rect class="stay another" '
                f'x="{span.x}" y="{span.lane * _LANE_HEIGHT}" width="{span.width}" height="19" '
                'rx="2"/></g>\n'
            )
    lanes = 1 + max((span.lane for span in placed_spans), default=0)
    return {"bars": trusted_html(bars), "lanes": lanes, "ticks": ticks}


def _job_bar(span: charts.LaneSpan, row: Row, colour: int, now: int) -> str:
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


def _table_row(row: Row, now: int) -> str:
    """A job, with its share of the node."""
    account, gpus = row["account"], row["share_gpus"]
    goes_on = absent(explain.as_of(row) or "it runs")
    end = goes_on if row["end_time"] is None else template_filters.moment(row["end_time"], False)
    cpus, memory = row["share_cpus"], row["share_memory_bytes"]
    bars, dash = usage_bars.job_bars(row, now), absent(NOT_REPORTED)
    return (
        f'<tr><th scope="row">{fragments.job_link(row)}</th>'
        f'<td class="name">{fragments.job_name(row)}</td>'
        f"<td>{fragments.job_state(row)}</td>"
        f"<td>{fragments.user_link(row['username'])}</td>"
        f"<td>{escape_repeated(account) if account else absent('no account is known')}</td>"
        f"<td>{template_filters.moment(row['start_time'], False)}</td>"
        f"<td>{end}</td>"
        f'<td class="n">{dash if cpus is None else template_filters.number(cpus)}</td>'
        f'<td class="n">{dash if memory is None else template_filters.size(memory)}</td>'
        f'<td class="n">{template_filters.number(gpus) if gpus else ""}</td>'
        f"<td>{fragments.usage_bar(bars['cpu'])}</td>"
        f"<td>{fragments.usage_bar(bars['memory'])}</td>"
        f"<td>{fragments.usage_bar(bars['gpu'])}</td></tr>\n"
    )
