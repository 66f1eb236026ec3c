"""A node's measurements over time, for those who may see all its jobs."""

from collections.abc import Iterator
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Query, Response
from pydantic import AfterValidator, BaseModel, Field

from batchjob.runtime.times import rfc3339
from batchjob_stats_db.timeseries.base import TimeSeriesStore
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.params import RowsParams, Time, Word
from batchjob_stats_server.api.rows import answer, select_keys
from batchjob_stats_server.auth.identity import CurrentAccess, CurrentPrincipal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.node_curves import (
    NODE_CURVES,
    NodeLine,
    NodeTarget,
    node_lines,
    node_window,
)
from batchjob_stats_server.services import CurrentServices, Services

router = APIRouter(prefix=PREFIX)


def _check_curve(name: str) -> str:
    if name not in NODE_CURVES:
        raise ValueError(f"unknown metric {name!r}; expected one of {', '.join(NODE_CURVES)}")
    return name


CurveName = Annotated[
    str, AfterValidator(_check_curve), Field(json_schema_extra={"enum": list(NODE_CURVES)})
]


class NodeMetricsQuery(RowsParams):
    """Which curves, of which time, and how fine."""

    metric: list[CurveName] = Field(
        ["cpu", "memory"], min_length=1, max_length=8, description="Names of curves."
    )
    since: Time | None = Field(None, description="Default: the last 24 hours.")
    until: Time | None = None
    points: int = Field(300, ge=1, le=3000, description="Maximum number of points per curve.")


class NodeMetricRow(BaseModel):
    """The mean of one curve over the interval that ends at `time`."""

    cluster: str
    node: str
    metric: str
    unit: str
    line: str  # a GPU or a component; "" if there is only one line
    time: int  # epoch milliseconds
    time_rfc3339: str
    mean: float


@router.get("/clusters/{cluster}/nodes/{node}/metrics", response_model=list[NodeMetricRow])
async def node_metrics(
    services: CurrentServices, principal: CurrentPrincipal, access: CurrentAccess,
    cluster: Annotated[Word, Path()], node: Annotated[Word, Path()],
    params: Annotated[NodeMetricsQuery, Query()],
) -> Response:  # fmt: skip
    """Usage of a node over time; only for viewers, since it includes everybody's jobs."""
    keys = select_keys(params.fields, NodeMetricRow)
    if not access.sees_all(cluster):
        raise Problem(
            403, f"only users who may see all jobs of {cluster} may see the usage of its nodes"
        )
    if services.histories is None:
        raise Problem(503, "no time series database is configured")
    since, until = node_window(params.since, params.until, int(services.clock()))
    instance = await run_sync(_instance, services, cluster, node)
    if not instance:
        raise Problem(404, f"no exporter of the node {node} of {cluster} is answering")
    target = NodeTarget(cluster, instance, since, until)

    def read_rows(history: TimeSeriesStore) -> Response:
        curves = [NODE_CURVES[name] for name in params.metric]
        rows = _rows(cluster, node, node_lines(history, target, curves, params.points))
        row_dicts = [dict(zip(NodeMetricRow.model_fields, row, strict=True)) for row in rows]
        return answer(row_dicts, keys, params.format)

    return await services.histories.run(principal.person_key(), read_rows)


def _instance(services: Services, cluster: str, node: str) -> str:
    """The target of the node's exporter; "" if none answers now."""
    reading = services.readings.of(cluster, services.clock()) if services.readings else None
    return reading.instance(node) if reading else ""


def _rows(cluster: str, node: str, lines: Iterator[NodeLine]) -> Iterator[tuple[Any, ...]]:
    for line in lines:
        for point in line.series.points:
            at = round(point.time * 1000)
            yield (
                cluster, node, line.curve.name, line.curve.unit, line.line,
                at, rfc3339(at // 1000), point.mean,
            )  # fmt: skip
