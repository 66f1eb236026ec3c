"""The page for administrators: what is read and measured, what is not, and who wastes most."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Response
from markupsafe import Markup, escape
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.measure import node_coverage
from batchjob_stats_db.queries import coverage, stats
from batchjob_stats_db.queries import usage as usage_queries
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.cluster_readings import short
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.letters import LetterTemplate
from batchjob_stats_server.pages.clusters import NoForm, reading, wastes
from batchjob_stats_server.pages.rendering import fragments, links
from batchjob_stats_server.pages.rendering.frame import PageRenderer, Shown, costly
from batchjob_stats_server.pages.rendering.template_filters import absent, number, share
from batchjob_stats_server.services import Given, Services

router = APIRouter(include_in_schema=False)

_WASTE_DAYS = 7
_WELL = 0.9  # part of the time; nodes below it are listed
_STATELESS = "the state as named by the scheduler is not known"


class NodeQuality(NamedTuple):
    """How completely the recent jobs of a node are known."""

    node: str
    state: str  # as reported by the scheduler; "" if it is not
    reported: float | None  # part of the last day in which its exporter answered
    jobs: int  # number that ended today or yesterday
    unmeasured: int  # number of these without any sample
    coverage: float | None  # part of their run time with samples; None without jobs

    @property
    def silent(self) -> bool:
        """Whether nothing arrives from it."""
        if self.reported is not None:
            return self.reported == 0.0
        return self.jobs > 0 and self.unmeasured == self.jobs

    @property
    def worst(self) -> float:
        """The lower of the two fractions."""
        return min(each for each in (self.reported, self.coverage, 1.0) if each is not None)


class ClusterHealth(NamedTuple):
    """What an administrator needs to know of one cluster."""

    name: str
    polls: Sequence[RowMapping]
    nodes: Sequence[NodeQuality]  # worst first
    exporters: int | None  # number that currently answer; None: unknown
    wastes: Sequence[tuple[Mapping[Any, Any], str]]  # each with the URL of a message, or ""

    def failing(self) -> list[RowMapping]:
        """Sources whose last reading failed."""
        return [
            row
            for row in self.polls
            if row["error_time"] is not None and row["error_time"] > (row["success_time"] or 0)
        ]

    def silent(self) -> list[NodeQuality]:
        """Nodes that never report."""
        return [each for each in self.nodes if each.silent]

    def poor(self) -> list[NodeQuality]:
        """Nodes of which much is missing."""
        return [each for each in self.nodes if not each.silent and each.worst < _WELL]


@router.get("/admin")
@costly
def admin(
    services: Given, page: Shown, access: Caller, _which: Annotated[NoForm, Query()]
) -> Response:
    """The clusters of which the caller may see all jobs."""
    with services.reader.connect() as db:
        known = dict.fromkeys(row["name"] for row in stats.clusters(db))
        names = [name for name in known if access.sees_all(name)]
        if not names and not access.everything:
            raise Problem(403, "this page is only for users who may see all jobs of a cluster")
        read = {name: _read(db, page, name) for name in names}
    found = [_health(services, page, name, *parts) for name, parts in read.items()]
    audit.saw(
        page.known, "waste", frozenset(each["username"] for one in found for each, _ in one.wastes)
    )
    return page.show(
        "admin.html", clusters=found, waste_days=_WASTE_DAYS, well=_WELL,
        letters=services.letters is not None, quality_rows=quality_rows,
        since=node_coverage.since(page.now),
    )  # fmt: skip


def _read(
    db: Connection, page: PageRenderer, cluster: str
) -> tuple[Sequence[RowMapping], Sequence[RowMapping], Sequence[RowMapping]]:
    since = day_of(page.now) - (_WASTE_DAYS - 1) * DAY
    used = usage_queries.summed(
        db, EVERYTHING, ["username"], since, day_of(page.now) + DAY, cluster=cluster
    )
    covered = coverage.coverage_by_node(db, cluster, node_coverage.since(page.now))
    return coverage.polls(db, cluster), covered, used


def _health(
    services: Services, page: PageRenderer, cluster: str, polls: Sequence[RowMapping],
    covered: Sequence[RowMapping], used: Sequence[RowMapping],
) -> ClusterHealth:  # fmt: skip
    now = reading(services, cluster)
    answers = services.readings.of(cluster, services.clock()) if services.readings else None
    reported = services.readings.reported(cluster, services.clock()) if services.readings else None
    states = {each.node: each.state for each in now.nodes.values()} if now else {}
    exporters = len(set(answers.instances.values())) if answers else None
    return ClusterHealth(
        cluster, polls, qualities(states, covered, reported if exporters else None), exporters,
        [(each, _letter(services.letters, page, cluster, each)) for each in wastes(used)],
    )  # fmt: skip


def qualities(
    states: Mapping[str, str], covered: Sequence[Mapping[Any, Any]],
    reported: Mapping[str, float] | None,
) -> list[NodeQuality]:  # fmt: skip
    """All nodes known to the scheduler or from jobs, the worst first."""
    jobs = {row["node"]: row for row in covered}
    parts = {short(node): part for node, part in (reported or {}).items()} | dict(reported or {})
    found = []
    for node in sorted({*states, *jobs}):
        row = jobs.get(node)
        part = None if reported is None else parts.get(node, parts.get(short(node), 0.0))
        found.append(
            NodeQuality(
                node, states.get(node, ""), part, row["jobs"] if row else 0,
                row["unmeasured"] if row else 0, row["coverage"] if row else None,
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: (each.worst, each.node))


def quality_rows(cluster: str, nodes: Sequence[NodeQuality]) -> Markup:
    """The rows of a table; a large cluster has hundreds."""
    return fragments.html(
        "".join(
            f'<tr><th scope="row">{fragments.node_link(cluster, each.node)}</th>'
            f"<td>{escape(each.state) if each.state else absent(_STATELESS)}</td>"
            f"{_part(each.reported, 'no time series database is configured')}"
            f"{_part(each.coverage, 'no job of two minutes or more ended here')}"
            f'<td class="n">{number(each.jobs)}</td><td class="n">{number(each.unmeasured)}</td>'
            "</tr>\n"
            for each in nodes
        )
    )


def _part(ratio: float | None, missing: str) -> str:
    if ratio is None:
        return f'<td class="n" data-value="">{absent(missing)}</td>'
    bad = " bad" if ratio < _WELL else ""
    return f'<td class="n{bad}" data-value="{ratio}">{share(ratio)}</td>'


def _letter(
    template: LetterTemplate | None, page: PageRenderer, cluster: str, waste: Mapping[Any, Any]
) -> str:
    if template is None:
        return ""
    where = links.path("jobs", user=waste["username"], cluster=cluster)
    return template.link(
        {
            "user": waste["username"],
            "cluster": cluster,
            "days": str(_WASTE_DAYS),
            "cpu_hours": f"{waste['cpu_unused_seconds'] / 3600:,.0f}",
            "gpu_hours": f"{waste['gpu_unused_seconds'] / 3600:,.0f}",
            "cpu_percent": _share(waste["cpu_efficiency"]),
            "gpu_percent": _share(waste["gpu_efficiency"]),
            "url": str(page.request.base_url).rstrip("/") + where,
        }
    )


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else share(ratio)
