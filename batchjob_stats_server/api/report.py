"""The report of a job, and one job whose id is a parameter, for dashboards.

In a path, the empty text box of a dashboard would make another path, with another meaning. A job
that is not there has no rows.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import APIRouter, Response
from pydantic import Field

from batchjob_stats_server.api import jobs
from batchjob_stats_server.api.answers import TurnRoute, answer, list_type, union_of_lists
from batchjob_stats_server.api.jobs import (
    PART_LISTS,
    PART_ROWS,
    JobId,
    JobPart,
    JobRow,
    PartsQuery,
    run_of,
)
from batchjob_stats_server.api.metrics import MetricRow, MetricsQuery, job_metrics
from batchjob_stats_server.api.params import (
    PREFIX,
    ClusterRows,
    InQuery,
    QueryParams,
    RunParams,
    Word,
)
from batchjob_stats_server.api.reports import report_of
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.report import model
from batchjob_stats_server.report.forms import FORMS, as_json

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)


ReportFormat = Literal["json", "text", "markdown", "html", "seff"]


class ReportQuery(RunParams):
    """Selects the run and the format of its report."""

    format: ReportFormat = "json"
    zone: Word = Field("UTC", description="Time zone of times in text, such as Europe/Paris.")


_INLINE_STYLE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)


@router.get(
    "/jobs/{jobid}/report",
    response_model=model.Report,
    responses={200: {"content": {media_type: {} for media_type, _ in FORMS.values()}}},
)
def job_report(caller: CurrentCaller, jobid: JobId, params: InQuery[ReportQuery]) -> Response:
    """Efficiency, energy, comparison with similar jobs, and advice; interim while the job runs."""
    try:
        zone = ZoneInfo(params.zone)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        expected = f"expected a time zone such as UTC, got {params.zone!r}"
        raise Problem(422, f"zone: {expected}") from error
    report = find_report(caller, jobid, params)
    if report is None:
        raise Problem(404, f"job {jobid} does not exist, or is not yours to see")
    if params.format == "json":
        return Response(as_json(report), media_type="application/json")
    media_type, write = FORMS[params.format]
    # The only content of a page besides text is an inline style sheet.
    headers = {"Content-Security-Policy": _INLINE_STYLE_POLICY} if params.format == "html" else None
    return Response(write(report, zone), media_type=media_type, headers=headers)


def find_report(caller: Caller, jobid: str, params: RunParams) -> model.Report | None:
    """The report of one run of a job; None if the caller may see no such job."""
    with caller.services.reader.connect() as db:
        run = run_of(db, caller.access, jobid, params.cluster, params.run)
    if run is None:
        return None
    log_jobs_seen(caller.principal, f"report of job {jobid}", [run])
    return report_of(caller.services, caller.access, run)


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


REPORT_ROWS: Mapping[ReportPart, type[Any]] = {
    "efficiency": model.Efficiency,
    "advice": model.Advice,
    "comparisons": model.SimilarComparison,
    "silent": model.SkippedRule,
    "logs": model.LogLink,
}


@router.get("/job", response_model=list_type(JobRow))
def one_job(caller: CurrentCaller, params: InQuery[OneJobQuery]) -> Response:
    """All runs of a job, latest first."""
    if params.jobid is None:
        return answer([], params, JobRow)
    return jobs.job(caller, params.jobid, params)


@router.get("/job/metrics", response_model=list[MetricRow])
async def one_job_metrics(caller: CurrentCaller, params: InQuery[OneJobMetricsQuery]) -> Response:
    """Usage of one run of a job over time, by node and GPU; gaps have no points."""
    if params.jobid is None:
        return answer([], params, MetricRow)
    return await job_metrics(caller, params.jobid, params)


@router.get("/job/report/{part}", response_model=union_of_lists(REPORT_ROWS.values()))
def one_job_report(
    caller: CurrentCaller, part: ReportPart, params: InQuery[OneJobPartsQuery]
) -> Response:
    """A list of the report of one run: efficiency, advice, comparisons, skipped rules or logs."""
    report = find_report(caller, params.jobid, params) if params.jobid else None
    if report is None:
        return answer([], params, REPORT_ROWS[part])
    found = report.similar.comparisons if part == "comparisons" else getattr(report, part)
    return answer([asdict(each) for each in found], params, REPORT_ROWS[part])


@router.get("/job/{part}", response_model=PART_LISTS)
def one_job_parts(
    caller: CurrentCaller, part: JobPart, params: InQuery[OneJobPartsQuery]
) -> Response:
    """Nodes, steps, GPUs or emissions of one run of a job; as last measured while it runs."""
    if params.jobid is None:
        return answer([], params, PART_ROWS[part])
    return jobs.job_parts(caller, params.jobid, part, params)
