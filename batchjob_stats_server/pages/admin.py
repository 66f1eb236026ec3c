"""The page for administrators: data sources, coverage of nodes, and unused allocations."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request, Response
from markupsafe import Markup, escape
from sqlalchemy.engine import RowMapping

from batchjob.judgements import FAILED_STATES, thresholds
from batchjob.schedulers.node_names import short_name
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.measure import rollup
from batchjob_stats_db.queries import operators, stats
from batchjob_stats_db.queries import usage as usage_queries
from batchjob_stats_server.api.answers import CostlyRoute
from batchjob_stats_server.api.params import InQuery, QueryParams
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.clusters import current_reading, is_failing
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
_MAX_LISTED = 10
_STATE_UNKNOWN = "the state as named by the scheduler is not known"


class NodeQuality(NamedTuple):
    """How completely a node and its recent jobs were measured."""

    node: str
    state: str  # as reported by the scheduler; "" if it is not
    exporter_ratio: float | None  # fraction of the last day in which it answered
    jobs: int  # number that ended today or yesterday
    unmeasured: int  # number of these without any sample
    coverage_ratio: float | None  # fraction of their run time with samples; None: no jobs

    @property
    def is_silent(self) -> bool:
        """Whether it sends no measurements."""
        if self.exporter_ratio is not None:
            return self.exporter_ratio == 0.0
        return self.jobs > 0 and self.unmeasured == self.jobs

    @property
    def lowest_ratio(self) -> float:
        """The lower of the two ratios."""
        return min(
            each for each in (self.exporter_ratio, self.coverage_ratio, 1.0) if each is not None
        )


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
    since, until = day_of(page.now) - (_WASTE_DAYS - 1) * DAY, day_of(page.now) + DAY
    yesterday = rollup.first_day(page.now)
    with services.reader.connect() as db:
        visible_names = [name for name in stats.cluster_names(db) if access.sees_all(name)]
        if not visible_names and not access.everything:
            raise Problem(403, "this page is only for users who may see all jobs of a cluster")
        queried = {
            name: (
                stats.polls(db, name),
                stats.refusals(db, name),
                stats.coverage_by_node(db, name, yesterday),
                usage_queries.sum_usage(db, EVERYTHING, ["username"], since, until, cluster=name),
                operators.failures_by_state(db, name, yesterday),
                operators.failures_by_node(db, name, yesterday, _MAX_LISTED),
            )
            for name in visible_names
        }
    clusters = [_cluster_values(page, name, *rows) for name, rows in queried.items()]
    wastes = [waste for cluster in clusters for waste, _ in cluster["wastes"]]
    log_jobs_seen(page.principal, "waste", wastes)
    return page.render(
        "admin.html", clusters=clusters, waste_days=_WASTE_DAYS,
        min_good_ratio=thresholds().enough_coverage,
        has_mail_links=services.mail_template is not None, quality_rows=quality_rows,
        since=yesterday, failed_states=FAILED_STATES, samples_problem=samples_problem,
    )  # fmt: skip


def _cluster_values(
    page: PageRenderer, cluster: str, polls: Sequence[RowMapping],
    refusals: Sequence[Mapping[str, Any]], coverage_rows: Sequence[RowMapping],
    usage_rows: Sequence[RowMapping], failures: Sequence[RowMapping],
    failing_nodes: Sequence[RowMapping],
) -> dict[str, Any]:  # fmt: skip
    """What the page shows of a cluster: its data sources, nodes and allocations."""
    services, node_reading = page.services, current_reading(page, cluster)
    reading = services.readings.of(cluster, services.clock())
    exporter_ratios = services.readings.answering_ratios(cluster, services.clock())
    states = {each.node: each.state for each in node_reading.nodes.values()} if node_reading else {}
    exporters = len(set(reading.instances.values())) if reading else None
    qualities = node_qualities(states, coverage_rows, exporter_ratios if exporters else None)
    enough = thresholds().enough_coverage
    return {
        "name": cluster,
        "polls": polls,
        "failing": [row for row in polls if is_failing(row)],
        "refusals": refusals,
        "nodes": qualities,  # the worst first
        "silent": [each for each in qualities if each.is_silent],
        "incomplete": [
            each for each in qualities if not each.is_silent and each.lowest_ratio < enough
        ],
        "exporters": exporters,  # number that currently answer; None: unknown
        "wastes": [
            (each, _mail_link(page, cluster, each))
            for each in operators.most_wasteful(usage_rows, _MAX_LISTED)
        ],
        "failures": failures,
        "failing_nodes": failing_nodes,
    }


def node_qualities(
    states: Mapping[str, str],
    coverage_rows: Sequence[Mapping[Any, Any]],
    reported: Mapping[str, float] | None,
) -> list[NodeQuality]:
    """All nodes known to the scheduler or from jobs, the worst first."""
    jobs = {row["node"]: row for row in coverage_rows}
    exporter_ratios = {
        short_name(node): exporter_ratio for node, exporter_ratio in (reported or {}).items()
    } | dict(reported or {})
    qualities = []
    for node in sorted({*states, *jobs}):
        row = jobs.get(node)
        exporter_ratio = (
            None
            if reported is None
            else exporter_ratios.get(node, exporter_ratios.get(short_name(node), 0.0))
        )
        qualities.append(
            NodeQuality(
                node, states.get(node, ""), exporter_ratio, row["jobs"] if row else 0,
                row["unmeasured"] if row else 0, row["coverage"] if row else None,
            )
        )  # fmt: skip
    return sorted(qualities, key=lambda each: (each.lowest_ratio, each.node))


def quality_rows(cluster: str, nodes: Sequence[NodeQuality]) -> Markup:
    """The rows of the table of nodes. Not a template, since a large cluster has hundreds."""
    return trusted_html(
        "".join(
            f'<tr><th scope="row">{fragments.node_link(cluster, each.node)}</th>'
            f"<td>{escape(each.state) if each.state else absent(_STATE_UNKNOWN)}</td>"
            f"{_ratio_cell(each.exporter_ratio, 'no time series database is configured')}"
            f"{_ratio_cell(each.coverage_ratio, 'no job of two minutes or more ended here')}"
            f'<td class="n">{number(each.jobs)}</td><td class="n">{number(each.unmeasured)}</td>'
            "</tr>\n"
            for each in nodes
        )
    )


def _ratio_cell(ratio: float | None, missing: str) -> str:
    if ratio is None:
        return f'<td class="n" data-value="">{absent(missing)}</td>'
    css_class = " bad" if ratio < thresholds().enough_coverage else ""
    return f'<td class="n{css_class}" data-value="{ratio}">{percent(ratio)}</td>'


def _mail_link(page: PageRenderer, cluster: str, waste: Mapping[Any, Any]) -> str:
    template = page.services.mail_template
    if template is None:
        return ""
    path = links.path("jobs", user=waste["username"], cluster=cluster)
    ratios = {what: waste[f"{what}_efficiency"] for what in ("cpu", "gpu")}
    percents = {what: "-" if ratio is None else percent(ratio) for what, ratio in ratios.items()}
    return template.link(
        {
            "user": waste["username"],
            "cluster": cluster,
            "days": str(_WASTE_DAYS),
            "cpu_hours": f"{waste['cpu_unused_seconds'] / 3600:,.0f}",
            "gpu_hours": f"{waste['gpu_unused_seconds'] / 3600:,.0f}",
            "cpu_percent": percents["cpu"],
            "gpu_percent": percents["gpu"],
            "url": str(page.request.base_url).rstrip("/") + path,
        }
    )
