"""The course of a job's measurements."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator, BaseModel, Field

from batchjob_stats_db.queries.jobs import parts_of
from batchjob_stats_db.queries.spans import span_of
from batchjob_stats_server import audit
from batchjob_stats_server.course import Line, devices_of, lines
from batchjob_stats_server.curves import CURVES
from batchjob_stats_server.identity import Caller, Known
from batchjob_stats_server.parameters import Table, Word
from batchjob_stats_server.problems import Problem
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.routes.jobs import JobId
from batchjob_stats_server.rows import answer, chosen
from batchjob_stats_server.runs import run_of
from batchjob_stats_server.services import Given

router = APIRouter(prefix=PREFIX)

_MOST_ROWS = 100_000


def _curve(name: str) -> str:
    if name not in CURVES:
        raise ValueError(f"{name!r} is none of {', '.join(CURVES)}")
    return name


CurveName = Annotated[str, AfterValidator(_curve), Field(json_schema_extra={"enum": list(CURVES)})]


class MetricsQuery(Table):
    """Which curves, and how fine."""

    metric: list[CurveName] = Field(
        ["cpu", "memory"], min_length=1, max_length=8, description="Names of curves."
    )
    points: int = Field(
        300, ge=1, le=3000, description="At most so many per line; fewer for jobs of many nodes."
    )
    cluster: Word | None = None
    run: int | None = Field(None, ge=1, le=2**53, description="`id` of the run; else the latest.")


class MetricRow(BaseModel):
    """What was seen of one line in the stretch of time that ends at `time`."""

    cluster: str
    jobid: str
    job_id: int
    metric: str
    unit: str
    line: str  # what tells lines of one metric apart, for legends
    node: str
    gpu: str
    uuid: str
    gpu_instance: str
    part: str  # mode, component or provider, where a metric is told by it
    time: int  # epoch milliseconds
    time_rfc3339: str
    min: float
    mean: float
    max: float


@router.get("/jobs/{jobid}/metrics", response_model=list[MetricRow])
def job_metrics(
    services: Given, known: Known, access: Caller, jobid: JobId,
    which: Annotated[MetricsQuery, Query()],
) -> Response:  # fmt: skip
    """What one run of a job used, over its time, on each node and GPU; no points in gaps."""
    keys = chosen(which.fields, MetricRow)
    if services.histories is None:
        raise Problem(503, "no time series database is configured")
    with services.reader.connect() as db:
        run = run_of(db, access, jobid, which.cluster, which.run)
        if run is None or run["start_time"] is None:
            return answer([], keys, which.format)
        policy, now = services.settings.tsdb.policy(), int(services.clock())
        job = span_of(db, access, run["id"], policy, now)
        gpus = devices_of((parts_of(db, access, run["id"]) or {}).get("gpus", ()))
    if job is None:  # it was deleted meanwhile
        return answer([], keys, which.format)
    audit.seen(known, f"metrics of job {jobid}", [run])
    points = _points(which.points, (job.nodes or 1) * len(which.metric))
    with services.histories.lent() as history:
        found = list(lines(history, job, [CURVES[name] for name in which.metric], points, gpus))
    rows = [dict(zip(MetricRow.model_fields, row, strict=True)) for row in _rows(run, found)]
    return answer(rows, keys, which.format)


def _points(wanted: int, lines: int) -> int:
    return min(wanted, max(10, _MOST_ROWS // lines))


def _rows(run: Any, found: Sequence[Line]) -> Iterator[tuple[Any, ...]]:
    for line in found:
        device = line.device
        head = (
            run["cluster"], run["jobid"], run["id"], line.curve.name, line.curve.unit, line.title,
            device.node, device.gpu, device.uuid, device.gpu_instance, line.part,
        )  # fmt: skip
        for point in line.course.points:
            at = round(point.time * 1000)
            yield (*head, at, _rfc3339(at // 1000), point.low, point.mean, point.high)


def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
