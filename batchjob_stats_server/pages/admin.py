"""The page for administrators: bad nodes, idle GPUs, data sources, and unused allocations."""

from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from markupsafe import escape

from batchjob.judgements import FAILED_STATES, thresholds
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.measure import rollup
from batchjob_stats_db.queries import operators, stats
from batchjob_stats_db.queries import usage as usage_queries
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_server.api.answers import CostlyRoute
from batchjob_stats_server.api.node_health import NodeHealth, gather_nodes, keep
from batchjob_stats_server.api.params import InQuery, QueryParams
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.clusters import is_failing
from batchjob_stats_server.pages.rendering import fragments, links
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage
from batchjob_stats_server.pages.rendering.template_filters import (
    absent,
    number,
    percent,
    trusted_html,
)

router = APIRouter(include_in_schema=False, route_class=CostlyRoute)

_WASTE_DAYS = 7
_MAX_LISTED, _MAX_NODES = 10, 200


async def _samples_problem(request: Request) -> str:
    problem: str = await request.app.state.samples.problem()
    return problem


@router.get("/admin")
def admin(
    page: RequestPage,
    _query: InQuery[QueryParams],
    samples_problem: Annotated[str, Depends(_samples_problem)],
) -> Response:
    """The clusters of which the caller may see all jobs."""
    services, access = page.services, page.access
    with services.reader.connect() as db:
        visible_names = [name for name in cluster_names(db) if access.sees_all(name)]
    if not visible_names and not access.everything:
        raise Problem(403, "this page is only for users who may see all jobs of a cluster")
    clusters = [_cluster_values(page, name) for name in visible_names]
    for what in ("wastes", "idle_gpus"):
        log_jobs_seen(page.principal, what, [row for each in clusters for row in each[what]])
    return page.render(
        "admin.html", clusters=clusters, waste_days=_WASTE_DAYS, thresholds=thresholds(),
        mail_link=services.settings.report.mail_address and partial(_mail_link, page),
        since=rollup.first_day(page.now), failed_states=FAILED_STATES,
        max_nodes=_MAX_NODES, most_listed=_MAX_LISTED, samples_problem=samples_problem,
    )  # fmt: skip


def _cluster_values(page: PageRenderer, cluster: str) -> dict[str, Any]:
    """What the page shows of a cluster: its nodes, data sources and allocations."""
    services, limits = page.services, thresholds()
    idle = (EVERYTHING, limits.idle_gpu, limits.idle_after, _MAX_LISTED, cluster)
    since, until = day_of(page.now) - (_WASTE_DAYS - 1) * DAY, day_of(page.now) + DAY
    reading = services.readings.of(cluster, services.clock())
    nodes = gather_nodes(page, cluster)
    with services.reader.connect() as db:
        polls = stats.polls(db, cluster)
        sums = usage_queries.sum_usage(db, EVERYTHING, ["username"], since, until, cluster=cluster)
        return {
            "name": cluster,
            "nodes": nodes,  # the worst first
            "bad": [node for node in nodes if node.findings],
            "silent": [node for node in nodes if node.is_silent],
            "node_rows": trusted_html("".join(map(_node_row, nodes[:_MAX_NODES]))),
            "exporters": len(set(reading.instances.values())) if reading else None,
            "polls": polls,
            "failing": [row for row in polls if is_failing(row)],
            "refusals": stats.refusals(db, cluster),
            "wastes": operators.most_wasteful(sums, _MAX_LISTED),
            "failures": operators.failures_by_state(db, cluster, rollup.first_day(page.now)),
            "idle_gpus": keep(page, ("idle", cluster), partial(operators.idle_gpus, db, *idle)),
        }


def _node_row(node: NodeHealth) -> str:
    """A row of the table of all nodes; a template takes much longer."""
    pace, busy, held = node.pace, node.cpus_busy, node.cpus_allocated
    times = "" if pace is None else f"\u00d7\u202f{round(pace, 2)}"
    of = absent("not known") if held is None else number(held)
    use = "" if busy is None else f'{number(round(busy, 1))} <small class="soft">of {of}</small>'
    no_use = "not measured, or the scheduler does not tell the size of the node"
    return "".join((
        f'<tr><th scope="row">{fragments.node_link(node.cluster, node.node)}</th>',
        f"<td>{escape(node.state) or absent('not known from the scheduler')}</td>",
        *(f'<td class="n">{number(n)}</td>' for n in (node.jobs, node.jobs_failed, node.users)),
        _cell(times or absent("fewer than five jobs that ran elsewhere too"), pace),
        _cell(use or absent(no_use), busy),
        _ratio_cell(node.exporter_ratio, "no time series database is configured"),
        _ratio_cell(node.coverage, "no job of two minutes or more ended here"),
        f'<td class="n">{number(node.unmeasured)}</td></tr>\n',
    ))  # fmt: skip


def _ratio_cell(ratio: float | None, missing: str) -> str:
    if ratio is None:
        return _cell(absent(missing), None)
    return _cell(percent(ratio), ratio, "" if ratio >= thresholds().enough_coverage else " bad")


def _cell(text: str, value: float | None, style: str = "") -> str:
    """A cell with the value by which the table is sorted."""
    return f'<td class="n{style}" data-value="{"" if value is None else value}">{text}</td>'


def _mail_link(page: PageRenderer, cluster: str, user: str) -> str:
    """An e-mail to a user, about their jobs."""
    to = page.services.settings.report.mail_address.replace("{user}", user)
    jobs = str(page.request.base_url).rstrip("/") + links.path("jobs", user=user, cluster=cluster)
    subject = quote(f"Your jobs on {cluster}", safe="")
    return f"mailto:{quote(to, safe='@')}?subject={subject}&body={quote(jobs, safe='')}"
