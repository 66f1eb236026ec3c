"""A node: who had it when."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy.engine import RowMapping

from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries import nodes as queries
from batchjob_stats_db.queries import stats
from batchjob_stats_server.api.params import Query as Form
from batchjob_stats_server.api.params import Time, Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering import charts
from batchjob_stats_server.pages.rendering.frame import Shown
from batchjob_stats_server.services import Given

router = APIRouter(include_in_schema=False)

WIDTH = 960.0
_MOST = 300
_MOST_DAYS = 31
_COLOURS = 8


class NodeForm(Form):
    """When."""

    since: Time | None = None
    until: Time | None = None

    def window(self, now: int) -> tuple[int, int]:
        """Epoch seconds: the last day by default, at most a month."""
        until = now if self.until is None else self.until
        since = until - DAY if self.since is None else self.since
        if since >= until:
            raise Problem(422, "since: expected a time before until")
        return max(since, until - _MOST_DAYS * DAY), until


class Timeline(NamedTuple):
    """The jobs of a node on lanes, with the hour lines."""

    stays: list[charts.Stay]
    lanes: int
    ticks: list[tuple[float, int]]  # (x, epoch seconds)
    colours: list[int]  # of each job, by its user


@router.get("/clusters/{cluster}/nodes/{node}")
def node(
    services: Given, page: Shown, access: Caller,
    cluster: Annotated[Word, Path()], node: Annotated[Word, Path()],
    which: Annotated[NodeForm, Query()],
) -> Response:  # fmt: skip
    """The jobs on a node that the caller may see, as a time line and a table."""
    since, until = which.window(page.now)
    with services.reader.connect() as db:
        if cluster not in {row["name"] for row in stats.clusters(db)}:
            raise Problem(404, f"there is no cluster {cluster}")
        rows = queries.stays(db, access, cluster, node, since, until, _MOST + 1)
    audit.seen(page.known, f"jobs on {node}", rows)
    more, rows = len(rows) > _MOST, rows[:_MOST]
    span = until - since
    return page.show(
        "node.html", cluster=cluster, node=node, rows=rows, more=more, since=since, until=until,
        earlier=(since - span, since), later=(until, until + span) if until < page.now else None,
        timeline=_timeline(rows, since, until), width=WIDTH, confined=not access.everything,
        grafana=page.in_grafana(
            page.grafana.node, since * 1000, until * 1000, cluster=cluster, node=node
        ),
        lookback_days=queries.LONGEST_RUN // DAY,
    )  # fmt: skip


def _timeline(rows: list[RowMapping], since: int, until: int) -> Timeline:
    spans = [(row["start_time"], row["end_time"] or until) for row in rows]
    stays = charts.stays(spans, since, until, WIDTH)
    ticks = [
        (round((at - since) * WIDTH / (until - since), 1), at) for at in charts.ticks(since, until)
    ]
    users = list(dict.fromkeys(row["username"] for row in reversed(rows)))
    colours = [users.index(row["username"]) % _COLOURS for row in rows]
    return Timeline(stays, 1 + max((stay.lane for stay in stays), default=0), ticks, colours)
