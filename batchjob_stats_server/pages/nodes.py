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
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.cluster_readings import CELLS, NodeGpu, NodeState
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.node_course import NODE_PLOTS, node_window
from batchjob_stats_server.pages.clusters import tells_totals
from batchjob_stats_server.pages.rendering import charts, node_jobs, plot_zones
from batchjob_stats_server.pages.rendering.frame import Shown, costly
from batchjob_stats_server.pages.rendering.job_table import READ
from batchjob_stats_server.services import Given, Services

router = APIRouter(include_in_schema=False)

WIDTH = 960.0
_MOST = 300
_COLOURS = 8
_TIMES = ("id", "start_time", "end_time")  # all that is shown of other users' jobs


class NodeForm(Form):
    """The period."""

    since: Time | None = None
    until: Time | None = None


class Timeline(NamedTuple):
    """The jobs of a node in lanes, with hour lines."""

    stays: list[charts.Stay]
    lanes: int
    ticks: list[tuple[float, int]]  # (x, epoch seconds)
    colours: list[int]  # one per job, by user


class NodeNow(NamedTuple):
    """The current state of a node, from the scheduler and its exporter."""

    state: NodeState | None
    exporter: bool  # whether the exporter answers
    gpus: Sequence[NodeGpu]


@router.get("/clusters/{cluster}/nodes/{node}")
@costly
def node(
    services: Given, page: Shown, access: Caller,
    cluster: Annotated[Word, Path()], node: Annotated[Word, Path()],
    which: Annotated[NodeForm, Query()],
) -> Response:  # fmt: skip
    """The visible jobs on a node, as a time line and a table, and its curves."""
    since, until = node_window(which.since, which.until, page.now)
    whole = access.sees_all(cluster)
    with services.reader.connect() as db:
        if cluster not in {row["name"] for row in stats.clusters(db)}:
            raise Problem(404, f"there is no cluster {cluster}")
        rows = queries.stays(db, access, cluster, node, since, until, _MOST + 1, READ)
        others = _others(services, access, cluster, rows, lambda: queries.stays(
            db, EVERYTHING, cluster, node, since, until, _MOST + 1, _TIMES
        ))  # fmt: skip
    audit.seen(page.known, f"jobs on {node}", rows)
    more, rows = len(rows) > _MOST, rows[:_MOST]
    span = until - since
    by_now = _now(services, access, cluster, node, rows)
    return page.show(
        "node.html", plots=whole, cluster=cluster, node=node, rows=rows, more=more,
        since=since, until=until, by_now=by_now, others=others, cells=CELLS,
        earlier=(since - span, since), later=(until, until + span) if until < page.now else None,
        timeline=_timeline(rows, others, since, until), width=WIDTH,
        confined=not whole, measured=whole and by_now.exporter,
        zones=plot_zones.NODE_ZONES,
        drawings=[plot for plot in NODE_PLOTS if by_now.gpus or not plot.gpu],
        grafana=page.in_grafana(
            page.grafana.node, since * 1000, until * 1000, cluster=cluster, node=node
        ),
        lookback_days=queries.LONGEST_RUN // DAY,
        bars=node_jobs.bars, table_rows=node_jobs.table_rows,
    )  # fmt: skip


def _others(
    services: Services, access: Access, cluster: str, seen: Sequence[RowMapping],
    ask: Callable[[], Sequence[RowMapping]],
) -> list[tuple[int, int | None]]:  # fmt: skip
    """When other jobs were there that the caller may not see; nothing else about them."""
    if access.sees_all(cluster) or not tells_totals(services, access, cluster):
        return []
    own = {row["id"] for row in seen}
    return [(row["start_time"], row["end_time"]) for row in ask() if row["id"] not in own]


def _now(
    services: Services, access: Access, cluster: str, node: str, rows: Sequence[RowMapping]
) -> NodeNow:
    """GPUs are shown to those who may see all jobs, or all that certainly hold them."""
    if services.readings is None or not tells_totals(services, access, cluster):
        return NodeNow(None, False, ())
    now = services.clock()
    found = services.readings.of(cluster, now)
    if found is None:
        return NodeNow(None, False, ())
    instance = found.instance(node)
    gpus = services.readings.gpus(cluster, instance, now) if instance else ()
    if not access.sees_all(cluster):
        running = {row["jobid"] for row in rows if row["end_time"] is None}
        gpus = [gpu for gpu in gpus if gpu.confirmed and gpu.jobids and set(gpu.jobids) <= running]
    return NodeNow(found.nodes.get(node), bool(instance), gpus)


def _timeline(
    rows: Sequence[RowMapping], others: Sequence[tuple[int, int | None]], since: int, until: int
) -> Timeline:
    spans = [(row["start_time"], row["end_time"] or until) for row in rows]
    spans += [(start, end or until) for start, end in others]
    stays = charts.stays(spans, since, until, WIDTH)
    ticks = [
        (round((at - since) * WIDTH / (until - since), 1), at) for at in charts.ticks(since, until)
    ]
    users = list(dict.fromkeys(row["username"] for row in reversed(rows)))
    colours = [users.index(row["username"]) % _COLOURS for row in rows]
    return Timeline(stays, 1 + max((stay.lane for stay in stays), default=0), ticks, colours)
