"""Measurements over time: of a job, and of a node for those who may see all its jobs."""

from collections.abc import Collection
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, Field
from sqlalchemy.engine import RowMapping

from batchjob.quantities.curves import CURVES
from batchjob.runtime.times import rfc3339
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import visible_jobs
from batchjob_stats_db.timeseries.base import Point, TimeSeriesStore
from batchjob_stats_server.api.answers import answer
from batchjob_stats_server.api.jobs import JobId, run_of
from batchjob_stats_server.api.params import PREFIX, InQuery, RowsParams, RunParams, Time, Word
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.curves import NODE_CURVES, aggregate, job_series, node_lines, node_window
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.services import Services

router = APIRouter(prefix=PREFIX)

_MAX_ROWS = 100_000


def _known_curve(known: Collection[str], name: str) -> str:
    if name not in known:
        raise ValueError(f"unknown metric {name!r}; expected one of {', '.join(known)}")
    return name


CurveName = Annotated[
    str,
    AfterValidator(partial(_known_curve, CURVES)),
    Field(json_schema_extra={"enum": list(CURVES)}),
]
NodeCurveName = Annotated[
    str,
    AfterValidator(partial(_known_curve, NODE_CURVES)),
    Field(json_schema_extra={"enum": list(NODE_CURVES)}),
]


class MetricsQuery(RowsParams, RunParams):
    """Which curves, and how fine."""

    metric: list[CurveName] = Field(
        ["cpu", "memory"], min_length=1, max_length=8, description="Names of curves."
    )
    points: int = Field(
        300,
        ge=1,
        le=3000,
        description="Maximum number of points per curve; fewer for jobs with many nodes or GPUs.",
    )
    aggregate: bool = Field(
        False,
        description="If true, one curve for each metric and part, with the minimum, median and "
        "maximum over all nodes and GPUs.",
    )
    node: Word | None = Field(None, description="Only curves of this node.")
    since: Time | None = Field(None, description="Default: the start of the job.")
    until: Time | None = None


class MetricRow(BaseModel):
    """Statistics of one curve over the interval that ends at `time`."""

    cluster: str
    jobid: str
    job_id: int
    metric: str
    unit: str
    line: str  # identifies a line of the metric, for legends
    node: str
    gpu: str
    uuid: str
    gpu_instance: str
    part: str  # mode, component or provider, if the metric is split by one
    time: int  # epoch milliseconds
    time_rfc3339: str
    min: float
    mean: float
    max: float


@router.get("/jobs/{jobid}/metrics", response_model=list[MetricRow])
async def job_metrics(
    caller: CurrentCaller, jobid: JobId, params: InQuery[MetricsQuery]
) -> Response:
    """Usage of one run of a job over time, by node and GPU; gaps have no points."""
    services, principal, access = caller.services, caller.principal, caller.access
    _require_store(services)
    run_and_job = await run_sync(_find_run, services, access, jobid, params)
    if run_and_job is None or not run_and_job[1].window.is_displayed:
        return answer([], params, MetricRow)
    run, job = run_and_job
    log_jobs_seen(principal, f"metrics of job {jobid}", [run])

    def read_rows(store: TimeSeriesStore) -> Response:
        curves = [CURVES[name] for name in params.metric]
        number_of_lines = max(job.nodes or 1, run["gpus_held"] or 0) * len(curves)
        points = min(params.points, max(10, _MAX_ROWS // number_of_lines))
        lines = [
            line
            for line in job_series(store, job, curves, points)
            if params.node in (None, line.device.node)
        ]
        job_keys = {"cluster": run["cluster"], "jobid": run["jobid"], "job_id": run["id"]}
        rows = [
            {**job_keys, "metric": line.curve.name, "unit": line.curve.unit, "line": line.title,
             **line.device._asdict(), "part": line.part,
             **_time_keys(point), "min": point.low, "mean": point.mean, "max": point.high}
            for line in (aggregate(lines) if params.aggregate else lines)
            for point in line.series.points
        ]  # fmt: skip
        return answer(rows, params, MetricRow)

    return await services.stores.run(principal.person_key(), read_rows)


def _require_store(services: Services) -> None:
    if not services.stores.has_store:
        raise Problem(503, "no time series database is configured")


def _find_run(
    services: Services, access: Access, jobid: str, params: MetricsQuery
) -> tuple[RowMapping, JobToMeasure] | None:
    """The run, and where its measurements of the requested time are stored."""
    policy, now = services.settings.tsdb.policy(), int(services.clock())
    with services.reader.connect() as db:
        run = run_of(db, access, jobid, params.cluster, params.run)
        job = visible_jobs(db, access, [run["id"]], policy, now).get(run["id"]) if run else None
    if run is None or job is None:
        return None
    begin, end = job.window.display_range
    begin = begin if params.since is None else params.since
    end = end if params.until is None else params.until
    return run, job._replace(window=job.window._replace(display_range=(begin, end)))


def _time_keys(point: Point) -> dict[str, Any]:
    at = round(point.time * 1000)
    return {"time": at, "time_rfc3339": rfc3339(at // 1000)}


class NodeMetricsQuery(RowsParams):
    """Which curves, of which time, and how fine."""

    metric: list[NodeCurveName] = Field(
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
    caller: CurrentCaller, cluster: Word, node: Word, params: InQuery[NodeMetricsQuery]
) -> Response:
    """Usage of a node over time; only for viewers, since it includes everybody's jobs."""
    services = caller.services
    if not caller.access.sees_all(cluster):
        raise Problem(
            403, f"only users who may see all jobs of {cluster} may see the usage of its nodes"
        )
    _require_store(services)
    window = node_window(params.since, params.until, int(services.clock()))
    reading = await run_sync(services.readings.of, cluster, services.clock())
    instance = reading.instance(node) if reading else ""
    if not instance:
        raise Problem(404, f"no exporter of the node {node} of {cluster} is answering")

    def read_rows(store: TimeSeriesStore) -> Response:
        curves = [NODE_CURVES[name] for name in params.metric]
        rows = [
            {"cluster": cluster, "node": node, "metric": curve.name, "unit": curve.unit,
             "line": line, **_time_keys(point), "mean": point.mean}
            for curve, line, series in node_lines(
                store, cluster, instance, window, curves, params.points
            )
            for point in series.points
        ]  # fmt: skip
        return answer(rows, params, NodeMetricRow)

    return await services.stores.run(caller.principal.person_key(), read_rows)
