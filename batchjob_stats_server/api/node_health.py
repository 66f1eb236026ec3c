"""Which nodes need a look: their failed jobs, pace, load beyond allocations, and missing data."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy.engine import Engine

from batchjob.judgements import ABOVE_ALLOCATION, SLOW_RUN, thresholds
from batchjob.runtime.formatting import share
from batchjob.schedulers.node_names import short_name
from batchjob_stats_db.measure import rollup
from batchjob_stats_db.queries import operators, stats
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_server.api.answers import CostlyRoute, answer, list_type
from batchjob_stats_server.api.params import PREFIX, ClusterRows, InQuery
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.cluster_readings import BUSY_SECONDS
from batchjob_stats_server.http.problems import Problem

router = APIRouter(prefix=PREFIX, route_class=CostlyRoute)

_KEPT_SECONDS = 60
_kept: WeakKeyDictionary[Engine, dict[Any, tuple[float, Any]]] = WeakKeyDictionary()
"""What takes long to find, and when it was found, by the database that was read."""


class NodeHealth(BaseModel):
    """A node, and what its jobs since yesterday and its exporter tell of it."""

    cluster: str = ""
    node: str = ""
    state: str = Field("", description="As reported by the scheduler; empty if it is not.")
    findings: str = Field("", description="What is wrong, in words.")
    jobs: int = Field(0, description="That ended.")
    unmeasured: int = Field(0, description="Of them, without any sample.")
    coverage: float | None = Field(None, description="Part of their run time with samples.")
    jobs_failed: int = 0
    users: int = Field(0, description="Of the failed jobs.")
    pace: float | None = Field(None, description="Times as long as elsewhere its jobs took.")
    jobs_compared: int = 0
    exporter_ratio: float | None = Field(None, description="Part of the day that it answered.")
    cpus_busy: float | None = Field(None, description="All the last ten minutes.")
    cpus_allocated: float | None = Field(None, description="To all jobs of these minutes.")
    cpus: float | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it sends no measurements."""
        if self.exporter_ratio is not None:
            return self.exporter_ratio == 0.0
        return self.jobs > 0 and self.unmeasured == self.jobs

    @property
    def lowest_ratio(self) -> float:
        ratios = (self.exporter_ratio, self.coverage, 1.0)
        return min(each for each in ratios if each is not None)

    def find(self) -> Iterator[str]:
        """What is wrong."""
        if self.users > 1:
            yield f"{self.jobs_failed} jobs of {self.users} users failed"
        if self.pace is not None and self.pace >= SLOW_RUN:
            yield f"{self.jobs_compared} jobs took {self.pace:.1f} times as long as elsewhere"
        busy, held = self.cpus_busy or 0.0, self.cpus_allocated
        if held is not None and busy - held > ABOVE_ALLOCATION * (self.cpus or 0.0):
            yield f"{busy:.0f} CPUs busy, {held:.0f} allocated"
        if self.is_silent:
            yield "sends no measurements"
        elif self.lowest_ratio < thresholds().enough_coverage:
            yield f"only {share(self.lowest_ratio)} of the time measured"


def keep(caller: Caller, key: tuple[str, ...], find: Callable[[], Any]) -> Any:
    """What was found in the last minute, or is found now; the same for all who may ask."""
    now, of_database = caller.services.clock(), _kept.setdefault(caller.services.reader, {})
    if key not in of_database or not 0 <= now - of_database[key][0] < _KEPT_SECONDS:
        of_database[key] = now, find()
    return of_database[key][1]


def gather_nodes(caller: Caller, cluster: str) -> list[NodeHealth]:
    """All nodes known to the scheduler or from jobs, the worst first; at most a minute old."""
    found: list[NodeHealth] = keep(caller, ("nodes", cluster), partial(_find, caller, cluster))
    return found


def _find(caller: Caller, cluster: str) -> list[NodeHealth]:
    readings, now = caller.services.readings, caller.services.clock()
    reading = readings.of(cluster, now)
    answering = readings.answering_ratios(cluster, now) if reading and reading.instances else None
    exporters, busy = _named(answering), _named(readings.busy_ratios(cluster, now))
    since, nodes = rollup.first_day(int(now)), dict(reading.nodes) if reading else {}
    known: dict[str, dict[str, Any]] = {name: {} for name in nodes}
    with caller.services.reader.connect() as db:
        rows: list[Mapping[Any, Any]] = [
            *stats.coverage_by_node(db, cluster, since),
            *operators.failures_by_node(db, cluster, since),
            *operators.paces_by_node(db, cluster),
        ]
        allocated = operators.cpus_by_node(db, cluster, int(now) - BUSY_SECONDS)
    for row in rows:
        known.setdefault(row["node"], {}).update(row)
    healths = []
    for name, values in known.items():
        health = NodeHealth(cluster=cluster, **{"node": name, **values})
        short, held = short_name(name), allocated.get(name, 0.0)
        if answering is not None:
            health.exporter_ratio = exporters.get(name, exporters.get(short, 0.0))
        if name in nodes:
            amounts, ratio = nodes[name].amounts, busy.get(name, busy.get(short))
            health.state, health.cpus = nodes[name].state, amounts.get("cpus")
            if ratio is not None and health.cpus:
                health.cpus_busy = ratio * health.cpus
            if held is not None:
                health.cpus_allocated = max(held, amounts.get("cpus_allocated", 0.0))
        health.findings = "; ".join(health.find())
        healths.append(health)
    return sorted(healths, key=_place)


def _place(each: NodeHealth) -> tuple[Any, ...]:
    number = each.findings.count(";") + 1 if each.findings else 0
    return -number, each.lowest_ratio, -each.users, -each.jobs_failed, each.node


def _named(ratios: Mapping[str, float] | None) -> dict[str, float]:
    """The ratios by the names of the nodes as they are, and short."""
    return {short_name(node): each for node, each in (ratios or {}).items()} | dict(ratios or {})


@router.get("/stats/nodes", response_model=list_type(NodeHealth))
def nodes(caller: CurrentCaller, params: InQuery[ClusterRows]) -> Response:
    """The nodes of the clusters of which the caller may see all jobs, the worst first.

    Failures and coverage are those of the jobs that ended since yesterday.
    """
    with caller.services.reader.connect() as db:
        visible = [name for name in cluster_names(db) if caller.access.sees_all(name)]
    if not visible and not caller.access.everything:
        raise Problem(403, "nodes are only for users who may see all jobs of a cluster")
    wanted = [name for name in visible if params.cluster in (None, name)]
    found = [each.model_dump() for name in wanted for each in gather_nodes(caller, name)]
    return answer(found, params, NodeHealth)
