"""One job whose id is a parameter, for dashboards: a job that is not there has no rows.

In a path, the empty text box of a dashboard would make another path, with another meaning.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, get_type_hints

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, create_model

from batchjob_stats_server.api import jobs
from batchjob_stats_server.api.answers import TurnRoute, answer, list_type, select_keys
from batchjob_stats_server.api.jobs import PART_ROWS, JobPart, JobRow, PartsQuery
from batchjob_stats_server.api.metrics import MetricRow, MetricsQuery, job_metrics
from batchjob_stats_server.api.params import PREFIX, ClusterRows, QueryParams, Word
from batchjob_stats_server.api.report import find_report
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.report.model import (
    Advice,
    Efficiency,
    LogLink,
    Report,
    SimilarComparison,
    SkippedRule,
)

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)


class _JobIdParam(QueryParams):
    jobid: Word | None = Field(
        None,
        description="Job id in the notation of the scheduler. Without one, or if there is no such "
        "job that the caller may see, there are no rows.",
    )


class OneJobQuery(ClusterRows, _JobIdParam):
    """Selects a job."""


class OneJobPartsQuery(PartsQuery, _JobIdParam):
    """Selects a run of a job."""


class OneJobMetricsQuery(MetricsQuery, _JobIdParam):
    """Selects a run of a job, its curves, and how fine."""


ReportPart = Literal["efficiency", "advice", "comparisons", "silent", "logs"]


def _row_of(kind: type[Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(kind).items()}
    return create_model(f"{kind.__name__}Row", **fields)


REPORT_ROWS: Mapping[ReportPart, type[BaseModel]] = {
    "efficiency": _row_of(Efficiency),
    "advice": _row_of(Advice),
    "comparisons": _row_of(SimilarComparison),
    "silent": _row_of(SkippedRule),
    "logs": _row_of(LogLink),
}
_REPORT_PARTS: Mapping[ReportPart, Callable[[Report], tuple[Any, ...]]] = {
    "efficiency": lambda report: report.efficiency,
    "advice": lambda report: report.advice,
    "comparisons": lambda report: report.similar.comparisons,
    "silent": lambda report: report.silent,
    "logs": lambda report: report.logs,
}


@router.get("/job", response_model=list_type(JobRow))
def one_job(caller: CurrentCaller, params: Annotated[OneJobQuery, Query()]) -> Response:
    """All runs of a job, latest first."""
    if params.jobid is None:
        return answer([], select_keys(params.fields, JobRow), params.format)
    return jobs.job(caller, params.jobid, params)


@router.get("/job/metrics", response_model=list[MetricRow])
async def one_job_metrics(
    caller: CurrentCaller, params: Annotated[OneJobMetricsQuery, Query()]
) -> Response:
    """Usage of one run of a job over time, by node and GPU; gaps have no points."""
    if params.jobid is None:
        return answer([], select_keys(params.fields, MetricRow), params.format)
    return await job_metrics(caller, params.jobid, params)


_ReportRows = (
    list_type(REPORT_ROWS["efficiency"])
    | list_type(REPORT_ROWS["advice"])
    | list_type(REPORT_ROWS["comparisons"])
    | list_type(REPORT_ROWS["silent"])
    | list_type(REPORT_ROWS["logs"])
)


@router.get("/job/report/{part}", response_model=_ReportRows)
def one_job_report(
    caller: CurrentCaller, part: ReportPart, params: Annotated[OneJobPartsQuery, Query()]
) -> Response:
    """A list of the report of one run: efficiency, advice, comparisons, skipped rules or logs."""
    keys = select_keys(params.fields, REPORT_ROWS[part])
    report = find_report(caller, params.jobid, params) if params.jobid else None
    rows = [asdict(each) for each in _REPORT_PARTS[part](report)] if report else []
    return answer(rows, keys, params.format)


@router.get("/job/{part}", response_model=jobs.PART_ROWS_UNION)
def one_job_parts(
    caller: CurrentCaller, part: JobPart, params: Annotated[OneJobPartsQuery, Query()]
) -> Response:
    """Nodes, steps, GPUs or emissions of one run of a job; as last measured while it runs."""
    if params.jobid is None:
        return answer([], select_keys(params.fields, PART_ROWS[part]), params.format)
    return jobs.job_parts(caller, params.jobid, part, params)
