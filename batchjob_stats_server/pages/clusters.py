"""Clusters: waiting and running jobs, busy nodes, top users, and what needs attention."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy.engine import RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import jobs as jobs_queries
from batchjob_stats_db.queries import nodes, stats
from batchjob_stats_db.queries import usage as usage_queries
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.waste import with_waste
from batchjob_stats_server.api.params import Query as Form
from batchjob_stats_server.api.params import Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.cluster_readings import CELLS, ClusterReading
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import Shown, costly
from batchjob_stats_server.pages.rendering.job_table import READ, READ_WAITING
from batchjob_stats_server.pages.rendering.wait_history import wait_history
from batchjob_stats_server.report.explain import elapsed, waiting
from batchjob_stats_server.services import Given, Services, live_columns

router = APIRouter(include_in_schema=False)

_RUNNING_ROWS = 1000
_LISTED = 10
_LOW = 0.25
_YOUNG_SECONDS = 1800  # a job that has just started may be idle

Row = Mapping[Any, Any]


class NoForm(Form):
    """No parameters."""


class ClusterForm(Form):
    """The partition whose waits are drawn; by default, the busiest."""

    partition: Word | None = None


class PollStatus(NamedTuple):
    """A source of job records, and the result of its last reading."""

    name: str
    success_time: int | None
    error_time: int | None

    @property
    def failing(self) -> bool:
        """Whether the last reading failed."""
        return self.error_time is not None and self.error_time > (self.success_time or 0)


@router.get("/clusters")
@costly
def clusters(
    services: Given, page: Shown, access: Caller, _which: Annotated[NoForm, Query()]
) -> Response:
    """All clusters, with the jobs that the caller may see."""
    with services.reader.connect() as db:
        known = stats.clusters(db)
        counts = _counts(stats.unfinished_by_state(db, access))
    sources = {name: _sources(known, name) for name in dict.fromkeys(row["name"] for row in known)}
    return page.show(
        "clusters.html", sources=sources, counts=counts, confined=not access.everything
    )


@router.get("/clusters/{cluster}")
@costly
def cluster(
    services: Given, page: Shown, access: Caller,
    cluster: Annotated[Word, Path()], which: Annotated[ClusterForm, Query()],
) -> Response:  # fmt: skip
    """One cluster: its jobs, nodes and users, as far as the caller may see them."""
    since = day_of(page.now) - 6 * DAY
    told = tells_totals(services, access, cluster)
    with services.reader.connect() as db:
        sources = _sources(stats.clusters(db), cluster)
        if sources is None:
            raise Problem(404, f"there is no cluster {cluster}")
        counts = _counts(stats.unfinished_by_state(db, access, cluster))
        queues = stats.queues(db, cluster) if told else []
        usual = {
            row["partition"]: stats.usual_wait(db, cluster, row["partition"], page.now)
            for row in queues
        }
        history = wait_history(db, access, cluster, which.partition, page.now) if told else None
        busy = nodes.busy(db, access, cluster)
        here = Filter(cluster=cluster)
        running = live_columns(
            services, db, jobs_queries.running(db, access, _RUNNING_ROWS, here, READ)
        )
        used = usage_queries.summed(
            db, access, ["username"], since, day_of(page.now) + DAY, cluster=cluster
        )
        pending = jobs_queries.pending(db, access, _RUNNING_ROWS, here, READ_WAITING)
    longest = sorted(pending, key=lambda row: waiting(row, page.now), reverse=True)
    audit.seen(page.known, f"cluster {cluster}", [*running, *used, *pending])
    return page.show(
        "cluster.html", cluster=cluster, queues=queues, usual=usual, sources=sources,
        history=history, reading=reading(services, cluster) if told else None, cells=CELLS,
        counts=counts[cluster], busy=busy, jobs_on={row["node"]: row["jobs"] for row in busy},
        idle_gpus=_idle_gpus(running, page.now), idle_cpus=_idle_cpus(running, page.now),
        longest_waits=longest[:_LISTED],
        wastes=wastes(used), since=since, confined=not access.sees_all(cluster),
        allocated=_allocated(running), partial=len(running) == _RUNNING_ROWS,
        unknown_gpus=sum(_unknown(row, "usage_gpu_utilization_ratio") for row in running),
        unknown_cpus=sum(_unknown(row, "cpu_efficiency") for row in running),
        waits=_median([waiting(row, page.now) for row in longest]),
    )  # fmt: skip


def tells_totals(services: Services, access: Access, cluster: str) -> bool:
    """Whether totals of the cluster may be shown, whoever its jobs belong to."""
    return services.settings.auth.cluster_totals == "everybody" or access.sees_all(cluster)


def reading(services: Services, cluster: str) -> ClusterReading | None:
    """The scheduler's state of the cluster's nodes; None if unknown."""
    found = services.readings.of(cluster, services.clock()) if services.readings else None
    return found if found and found.nodes else None


def _sources(known: Sequence[RowMapping], cluster: str) -> list[PollStatus] | None:
    """None for a cluster that does not exist."""
    rows = [row for row in known if row["name"] == cluster]
    if not rows:
        return None
    return [
        PollStatus(row["source"], row["success_time"], row["error_time"])
        for row in rows
        if row["source"] is not None
    ]


def _counts(rows: Sequence[RowMapping]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        counts[row["cluster"]][row["state"]] = row["jobs"]
    return counts


def _allocated(running: Sequence[RowMapping]) -> dict[str, int]:
    return {
        name: sum(row[f"allocated_{name}"] or 0 for row in running)
        for name in ("cpus", "gpus", "nodes")
    }


def _idle_gpus(running: Sequence[RowMapping], now: int) -> list[RowMapping]:
    """Jobs that hold GPUs and hardly use them, those with the most GPU time held first."""
    return _idle(running, now, "usage_gpu_utilization_ratio", "allocated_gpus")


def _idle_cpus(running: Sequence[RowMapping], now: int) -> list[RowMapping]:
    """The same for CPUs."""
    low = [row for row in running if _below(row["cpu_efficiency"])]
    return _longest(low, now, "allocated_cpus")


def _idle(running: Sequence[RowMapping], now: int, ratio: str, held: str) -> list[RowMapping]:
    low = [row for row in running if _below(row[ratio])]
    return _longest(low, now, held)


def _unknown(row: Row, ratio: str) -> bool:
    """Whether the use of a job's GPUs, or CPUs, is unknown."""
    return row[ratio] is None and (ratio == "cpu_efficiency" or bool(row["allocated_gpus"]))


def _below(ratio: float | None) -> bool:
    """Whether the use is this low; 0 is low, unknown is not."""
    return ratio is not None and ratio < _LOW


def _longest(rows: Sequence[RowMapping], now: int, held: str) -> list[RowMapping]:
    old = [row for row in rows if (elapsed(row, now) or 0) >= _YOUNG_SECONDS]

    def wasted(row: RowMapping) -> float:
        return (row[held] or 0) * (elapsed(row, now) or 0)

    return sorted(old, key=wasted, reverse=True)[:_LISTED]


def wastes(used: Sequence[RowMapping]) -> list[dict[Any, Any]]:
    """The users of these sums with the most unused, most first."""

    def worth(row: Row) -> float:
        # On most machines, a GPU is worth several dozen CPUs.
        return float(row["cpu_unused_seconds"] + 32 * row["gpu_unused_seconds"])

    found = sorted(map(with_waste, used), key=worth, reverse=True)
    return [row for row in found[:_LISTED] if worth(row) > 0]


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
