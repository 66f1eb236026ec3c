"""Clusters: waiting and running jobs, busy nodes, top users, and what needs attention."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any

from fastapi import APIRouter, Response
from markupsafe import Markup, escape
from sqlalchemy.engine import Connection, RowMapping

from batchjob.judgements import thresholds
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import NOTHING, Access
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import nodes, stats
from batchjob_stats_db.queries import usage as usage_queries
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, list_jobs
from batchjob_stats_db.queries.operators import most_wasteful
from batchjob_stats_server.api.answers import CostlyRoute
from batchjob_stats_server.api.params import InQuery, QueryParams, Word
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.cluster_readings import NODE_STATE_LABELS, ClusterReading
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering import links, template_filters
from batchjob_stats_server.pages.rendering.charts import DURATION_STEPS, day_chart
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage
from batchjob_stats_server.pages.rendering.job_table import LISTED_COLUMNS, LISTED_WAITING_COLUMNS
from batchjob_stats_server.pages.rendering.template_filters import trusted_html
from batchjob_stats_server.report.explain import elapsed_seconds, usual_wait, waiting_seconds

router = APIRouter(include_in_schema=False, route_class=CostlyRoute)

_MAX_ROWS = 1000
_MAX_LISTED = 10
_WAIT_DAYS = 30
_WAIT_SEGMENTS = {"median": "main", "median to 90th percentile": "rest"}


class ClusterForm(QueryParams):
    """Selects the partition whose waits are drawn; by default, the busiest."""

    partition: Word | None = None


@router.get("/clusters")
def clusters(page: RequestPage, _query: InQuery[QueryParams]) -> Response:
    """All clusters, with the jobs that the caller may see."""
    with page.services.reader.connect() as db:
        cluster_rows = stats.clusters(db)
        counts = _count_by_state(stats.unfinished_by_state(db, page.access))
    sources = {
        name: _polled_sources(cluster_rows, name)
        for name in dict.fromkeys(row["name"] for row in cluster_rows)
    }
    return page.render(
        "clusters.html",
        sources=sources,
        is_failing=is_failing,
        counts=counts,
        is_restricted=not page.access.everything,
    )


@router.get("/clusters/{cluster}")
def cluster(page: RequestPage, cluster: Word, form: InQuery[ClusterForm]) -> Response:
    """One cluster: its jobs, nodes and users, as far as the caller may see them."""
    since = day_of(page.now) - 6 * DAY
    access, shows_totals = page.access, can_see_totals(page, cluster)
    with page.services.reader.connect() as db:
        sources = _polled_sources(stats.clusters(db), cluster)
        if sources is None:
            raise Problem(404, f"there is no cluster {cluster}")
        counts = _count_by_state(stats.unfinished_by_state(db, access, cluster))
        queues = stats.queued_by_partition(db, cluster) if shows_totals else []
        usual_waits = {
            row["partition"]: usual_wait(row)
            for row in stats.usual_waits(db, NOTHING, cluster, page.now)
        }
        history = (
            _wait_history(db, access, cluster, form.partition, page.now) if shows_totals else None
        )
        busy = nodes.busy_nodes(db, access, cluster)
        running, _ = list_jobs(
            db, access, Filter(cluster, running=True), page=Page(_MAX_ROWS, columns=LISTED_COLUMNS)
        )
        usage_rows = usage_queries.sum_usage(
            db, access, ["username"], since, day_of(page.now) + DAY, cluster=cluster
        )
        pending, _ = list_jobs(
            db, access, Filter(cluster, states=(JobState.PENDING,)),
            page=Page(_MAX_ROWS, columns=LISTED_WAITING_COLUMNS),
        )  # fmt: skip
    waits = [(waiting_seconds(row, page.now), row) for row in pending]
    ready = [(seconds, row) for seconds, row in waits if seconds is not None]
    held = {"cpus": "allocated_cpus", "gpus": "gpus_held", "nodes": "allocated_nodes"}
    allocated = {name: sum(row[key] or 0 for row in running) for name, key in held.items()}
    longest_waits = sorted(ready, key=lambda wait: wait[0], reverse=True)
    reading = current_reading(page, cluster) if shows_totals else None
    log_jobs_seen(page.principal, f"cluster {cluster}", [*running, *usage_rows, *pending])
    return page.render(
        "cluster.html", cluster=cluster, lacks_gpus=_lacks_gpus(running, reading),
        queues=queues, usual_waits=usual_waits, sources=sources,
        is_failing=is_failing,
        reading=reading, history=history, cells=NODE_STATE_LABELS,
        counts=counts[cluster], busy=busy,
        node_cells=_node_cells(cluster, {row["node"]: row["jobs"] for row in busy}, reading),
        idle_gpus=_idle_jobs(running, page.now, "usage_gpu_utilization_ratio", "gpus_held"),
        idle_cpus=_idle_jobs(running, page.now, "cpu_efficiency", "allocated_cpus"),
        longest_waits=longest_waits[:_MAX_LISTED],
        wastes=most_wasteful(usage_rows, _MAX_LISTED),
        thresholds=thresholds(), since=since, is_restricted=not access.sees_all(cluster),
        allocated=allocated, is_partial=len(running) == _MAX_ROWS,
        unknown_gpus=sum(
            row["usage_gpu_utilization_ratio"] is None and bool(row["gpus_held"])
            for row in running
        ),
        unknown_cpus=sum(row["cpu_efficiency"] is None for row in running),
        median_wait_seconds=median_high(seconds for seconds, _ in ready) if ready else None,
    )  # fmt: skip


def can_see_totals(page: PageRenderer, cluster: str) -> bool:
    """Whether the caller may see totals over the jobs of all users of the cluster."""
    everybody = page.services.settings.auth.cluster_totals == "everybody"
    return everybody or page.access.sees_all(cluster)


def current_reading(page: PageRenderer, cluster: str) -> ClusterReading | None:
    """The last reading of the cluster's nodes from the scheduler; None if there is none."""
    reading = page.services.readings.of(cluster, page.services.clock())
    return reading if reading and reading.nodes else None


def _polled_sources(cluster_rows: Sequence[RowMapping], cluster: str) -> list[RowMapping] | None:
    """The sources of a cluster's job records; None if the cluster does not exist."""
    rows = [row for row in cluster_rows if row["name"] == cluster]
    return [row for row in rows if row["source"] is not None] if rows else None


def is_failing(source: RowMapping) -> bool:
    """Whether the last reading of a source of job records failed."""
    failed, succeeded = source["error_time"], source["success_time"]
    return failed is not None and failed > (succeeded or 0)


def _count_by_state(rows: Sequence[RowMapping]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        counts[row["cluster"]][row["state"]] = row["jobs"]
    return counts


def _lacks_gpus(running: Sequence[RowMapping], reading: ClusterReading | None) -> bool:
    """Whether records have the GPUs of no job, although jobs hold some."""
    if any(row["allocated_gpus"] for row in running):
        return False
    on_nodes = reading.totals().get("gpus_allocated") if reading else None
    return bool(on_nodes) or any(row["gpus_held"] for row in running)


def _idle_jobs(
    running: Sequence[RowMapping], now: int, ratio: str, allocated: str
) -> list[RowMapping]:
    """Jobs with a low ratio, those with the most allocated time first.

    A ratio of 0 is low, an unknown one is not.
    """
    limits = thresholds()
    idle = [
        row
        for row in running
        if row[ratio] is not None
        and row[ratio] < limits.low_use
        and (elapsed_seconds(row, now) or 0) >= limits.idle_after
    ]

    idle.sort(key=lambda row: -(row[allocated] or 0) * (elapsed_seconds(row, now) or 0))
    return idle[:_MAX_LISTED]


def _wait_history(
    db: Connection, access: Access, cluster: str, partition: str | None, now: int
) -> dict[str, Any] | None:
    """How long jobs of a partition waited in the last 30 days; None if no job started.

    Days with few jobs are included only for callers who may see all jobs of the cluster.
    """
    since = day_of(now) - (_WAIT_DAYS - 1) * DAY
    partitions = stats.busiest_partitions(db, cluster, since)
    if not partitions:
        return None
    shown_partition = partition if partition in partitions else partitions[0]
    minimum = {"least_jobs": 1} if access.sees_all(cluster) else {}
    wait_rows = stats.waits_by_day(db, cluster, shown_partition, since, **minimum)
    waits_by_day = {
        row["day"]: (row["wait_p50_seconds"], row["wait_p90_seconds"] - row["wait_p50_seconds"])
        for row in wait_rows
    }
    chart = day_chart(
        "h-history", "Wait", _WAIT_SEGMENTS, waits_by_day, since, since + _WAIT_DAYS * DAY,
        template_filters.duration, steps=DURATION_STEPS,
    )  # fmt: skip
    return {"partition": shown_partition, "partitions": partitions, "chart": chart}


def _node_cells(cluster: str, jobs: Mapping[str, int], reading: ClusterReading | None) -> Markup:
    """The nodes with the number of their jobs, in the colours of their states if these are known.

    Not a template, since a cluster may have thousands of nodes.
    """
    if reading is None:
        return trusted_html("".join(_cell(cluster, node, count) for node, count in jobs.items()))
    return trusted_html(
        "".join(
            _cell(cluster, each.node, jobs.get(each.node, 0), each.css_class, title)
            for each in reading.nodes.values()
            for title in (
                ", ".join((each.state, *each.flags)) + (f": {each.reason}" if each.reason else ""),
            )
        )
    )


def _cell(cluster: str, node: str, jobs: int, css_class: str = "", title: str = "") -> str:
    class_attribute, spoken_title, job_count = "", "", ""
    if css_class:
        class_attribute = f' class="{css_class}"'
        spoken_title = f'<span class="visually-hidden">, {escape(title)}</span>'
    if jobs:
        job_count = f' <small>{jobs}<span class="visually-hidden"> jobs</span></small>'
    title_attribute = f' title="{escape(title)}"' if title else ""
    path = escape(links.path("clusters", cluster, "nodes", node))
    content = f"{escape(node)}{spoken_title}{job_count}"
    return f'<li{class_attribute}><a href="{path}"{title_attribute}>{content}</a></li>'
