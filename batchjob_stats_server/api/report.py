"""The report of a job."""

from collections.abc import Mapping
from datetime import tzinfo
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from batchjob_stats_db.queries.jobstats_summary import NoSummaryError, jobstats_summary
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import PREFIX, RunParams, Word
from batchjob_stats_server.api.reports import report_of, sources_of
from batchjob_stats_server.api.runs import JobId, run_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.report.forms import FORMS, as_json
from batchjob_stats_server.report.model import Report

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)


ReportFormat = Literal["json", "text", "markdown", "html", "seff", "jobstats"]


class ReportQuery(RunParams):
    """Selects the run and the format of its report."""

    format: ReportFormat | None = Field(
        None, description="Default: the media type of the Accept header."
    )
    zone: Word = Field("UTC", description="Time zone of times in text, such as Europe/Paris.")


_MEDIA_TYPES = {media_type: name for name, (media_type, _) in FORMS.items() if name != "seff"}
_INLINE_STYLE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)


@router.get(
    "/jobs/{jobid}/report",
    response_model=Report,
    responses={200: {"content": {media_type: {} for media_type in _MEDIA_TYPES}}},
)
def job_report(
    caller: CurrentCaller, request: Request, jobid: JobId,
    params: Annotated[ReportQuery, Query()],
) -> Response:  # fmt: skip
    """Efficiency, energy, comparison with similar jobs, and advice; interim while the job runs."""
    zone = _parse_zone(params.zone)
    if params.format == "jobstats":
        return _jobstats_summary(caller, jobid, params)
    report = find_report(caller, jobid, params)
    if report is None:
        raise Problem(404, f"job {jobid} does not exist, or is not yours to see")
    accept = request.headers.get("accept", "*/*")
    return _render(
        report,
        params.format
        or negotiate_format(accept, {**_MEDIA_TYPES, "application/json": "json"}, "json"),
        zone,
    )


def _jobstats_summary(caller: Caller, jobid: str, params: RunParams) -> Response:
    with caller.services.reader.connect() as db:
        run = run_of(db, caller.access, jobid, params.cluster, params.run)
        try:
            text = jobstats_summary(db, caller.access, run) if run else ""
        except NoSummaryError as error:
            raise Problem(404, f"job {jobid} has no summary of jobstats: {error}") from error
    if run is None:
        raise Problem(404, f"job {jobid} does not exist, or is not yours to see")
    audit.log_jobs_seen(caller.principal, f"report of job {jobid}", [run])
    headers = {"Cache-Control": "private, no-store"}
    return Response(f"{text}\n", media_type="text/plain", headers=headers)


def find_report(caller: Caller, jobid: str, params: RunParams) -> Report | None:
    """The report of one run of a job; None if the caller may see no such job."""
    with caller.services.reader.connect() as db:
        run = run_of(db, caller.access, jobid, params.cluster, params.run)
    if run is None:
        return None
    audit.log_jobs_seen(caller.principal, f"report of job {jobid}", [run])
    return report_of(sources_of(caller.services), caller.access, run)


def negotiate_format(accept: str, forms: Mapping[str, str], otherwise: str) -> str:
    """The format with the highest quality in a header `Accept` (RFC 9110, 12.5.1), first of equals.

    `forms`: names by media type. A client that accepts anything, or none of these, gets
    `otherwise`.
    """
    wanted: list[tuple[float, int, str]] = []
    for place, each in enumerate(accept.split(",")):
        media_type, *parameters = (part.strip().lower() for part in each.split(";"))
        name = otherwise if media_type == "*/*" else forms.get(media_type)
        quality = next((_quality(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
        if name and quality > 0:
            wanted.append((-quality, place, name))
    return min(wanted, default=(0.0, 0, otherwise))[2]


def _quality(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def _parse_zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise Problem(422, f"zone: expected a time zone such as UTC, got {name!r}") from error


def _render(report: Report, form: str, zone: tzinfo) -> Response:
    headers = {"Cache-Control": "private, no-store", "Vary": "Accept"}
    if form == "json":
        return Response(as_json(report), media_type="application/json", headers=headers)
    media_type, write = FORMS[form]
    if form == "html":  # its only content besides text is an inline style sheet
        headers["Content-Security-Policy"] = _INLINE_STYLE_POLICY
    return Response(write(report, zone), media_type=media_type, headers=headers)
