"""The page of a node: its current state and GPUs, its curves, and its jobs over time."""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy.engine import RowMapping

from batchjob_stats_db.database.access import EVERYTHING, Access
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries import nodes as queries
from batchjob_stats_db.queries import stats
from batchjob_stats_server.api.params import Query as Form
from batchjob_stats_server.api.params import Time, Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentAccess
from batchjob_stats_server.cluster_readings import NodeGpu, NodeState
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.node_curves import NODE_PLOTS, node_window
from batchjob_stats_server.pages.clusters import can_see_totals
from batchjob_stats_server.pages.rendering import charts, node_jobs, plot_zones
from batchjob_stats_server.pages.rendering.frame import RequestPage, costly
from batchjob_stats_server.pages.rendering.job_table import JOB_COLUMNS
from batchjob_stats_server.services import CurrentServices, Services

router = APIRouter(include_in_schema=False)

TIMELINE_WIDTH = 960.0
_MAX_JOBS = 300
_COLOUR_COUNT = 8
_TIME_COLUMNS = ("id", "start_time", "end_time")  # all that is shown of other users' jobs


class NodeForm(Form):
    """The period."""

    since: Time | None = None
    until: Time | None = None


class Timeline(NamedTuple):
    """The jobs of a node in lanes, with grid lines."""

    spans: list[charts.LaneSpan]
    lanes: int
    ticks: list[tuple[float, int]]  # (x, epoch seconds)
    colours: list[int]  # one per job, by user


class NodeStatus(NamedTuple):
    """The current state of a node, from the scheduler and its exporter."""

    state: NodeState | None
    exporter_answers: bool  # whether the exporter answers
    gpus: Sequence[NodeGpu]


@router.get("/clusters/{cluster}/nodes/{node}")
@costly
def node(
    services: CurrentServices, page: RequestPage, access: CurrentAccess,
    cluster: Annotated[Word, Path()], node: Annotated[Word, Path()],
    form: Annotated[NodeForm, Query()],
) -> Response:  # fmt: skip
    """The visible jobs on a node, as a time line and a table, and its curves."""
    since, until = node_window(form.since, form.until, page.now)
    sees_all = access.sees_all(cluster)
    with services.reader.connect() as db:
        if cluster not in {row["name"] for row in stats.clusters(db)}:
            raise Problem(404, f"there is no cluster {cluster}")
        rows = queries.jobs_on_node(
            db, access, cluster, node, since, until, _MAX_JOBS + 1, JOB_COLUMNS
        )
        hidden_spans = _hidden_spans(services, access, cluster, rows, lambda: queries.jobs_on_node(
            db, EVERYTHING, cluster, node, since, until, _MAX_JOBS + 1, _TIME_COLUMNS
        ))  # fmt: skip
    audit.log_jobs_seen(page.principal, f"jobs on {node}", rows)
    has_more, rows = len(rows) > _MAX_JOBS, rows[:_MAX_JOBS]
    duration = until - since
    current = _node_status(services, access, cluster, node, rows)
    return page.render(
        "node.html", uses_plotly=sees_all, cluster=cluster, node=node, rows=rows, has_more=has_more,
        since=since, until=until, current=current, hidden_spans=hidden_spans,
        earlier=(since - duration, since),
        later=(until, until + duration) if until < page.now else None,
        timeline=_timeline(rows, hidden_spans, since, until), width=TIMELINE_WIDTH,
        is_restricted=not sees_all, has_measurements=sees_all and current.exporter_answers,
        zones=plot_zones.node_zones(),
        plots=[plot for plot in NODE_PLOTS if current.gpus or not plot.gpu],
        grafana_url=page.grafana_url(
            page.grafana.node, since * 1000, until * 1000, cluster=cluster, node=node
        ),
        lookback_days=queries.LONGEST_RUN_SECONDS // DAY,
        timeline_bars=node_jobs.timeline_bars, table_rows=node_jobs.table_rows,
    )  # fmt: skip


def _hidden_spans(
    services: Services, access: Access, cluster: str, visible_rows: Sequence[RowMapping],
    query_all: Callable[[], Sequence[RowMapping]],
) -> list[tuple[int, int | None]]:  # fmt: skip
    """Start and end times of the jobs that the caller may not see."""
    if access.sees_all(cluster) or not can_see_totals(services, access, cluster):
        return []
    visible_ids = {row["id"] for row in visible_rows}
    return [
        (row["start_time"], row["end_time"]) for row in query_all() if row["id"] not in visible_ids
    ]


def _node_status(
    services: Services, access: Access, cluster: str, node: str, rows: Sequence[RowMapping]
) -> NodeStatus:
    """Includes only GPUs of which the caller may see all jobs."""
    if services.readings is None or not can_see_totals(services, access, cluster):
        return NodeStatus(None, False, ())
    now = services.clock()
    reading = services.readings.of(cluster, now)
    if reading is None:
        return NodeStatus(None, False, ())
    instance = reading.instance(node)
    gpus = services.readings.gpus(cluster, instance, now) if instance else ()
    if not access.sees_all(cluster):
        running = {row["jobid"] for row in rows if row["end_time"] is None}
        gpus = [gpu for gpu in gpus if gpu.confirmed and gpu.jobids and set(gpu.jobids) <= running]
    return NodeStatus(reading.nodes.get(node), bool(instance), gpus)


def _timeline(
    rows: Sequence[RowMapping],
    hidden_spans: Sequence[tuple[int, int | None]],
    since: int,
    until: int,
) -> Timeline:
    spans = [(row["start_time"], row["end_time"] or until) for row in rows]
    spans += [(start, end or until) for start, end in hidden_spans]
    placed_spans = charts.assign_lanes(spans, since, until, TIMELINE_WIDTH)
    ticks = [
        (round((time - since) * TIMELINE_WIDTH / (until - since), 1), time)
        for time in charts.tick_times(since, until)
    ]
    users = list(dict.fromkeys(row["username"] for row in reversed(rows)))
    colours = [users.index(row["username"]) % _COLOUR_COUNT for row in rows]
    return Timeline(
        placed_spans, 1 + max((span.lane for span in placed_spans), default=0), ticks, colours
    )
