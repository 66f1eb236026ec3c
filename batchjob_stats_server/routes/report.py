"""The report of a job."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from batchjob_stats_server import audit
from batchjob_stats_server.identity import Caller, Known
from batchjob_stats_server.parameters import Query as Parameters
from batchjob_stats_server.parameters import Word
from batchjob_stats_server.problems import Problem
from batchjob_stats_server.report.model import Report
from batchjob_stats_server.reports import report_of
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.routes.jobs import JobId
from batchjob_stats_server.runs import run_of
from batchjob_stats_server.services import Given

router = APIRouter(prefix=PREFIX)


class ReportQuery(Parameters):
    """Of which run."""

    cluster: Word | None = None
    run: int | None = Field(None, ge=1, le=2**53, description="`id` of the run; else the latest.")


@router.get("/jobs/{jobid}/report", response_model=Report)
def job_report(
    services: Given, known: Known, access: Caller, jobid: JobId,
    which: Annotated[ReportQuery, Query()],
) -> Report:  # fmt: skip
    """Efficiency, energy, comparison with similar jobs, and advice; interim while the job runs."""
    with services.reader.connect() as db:
        run = run_of(db, access, jobid, which.cluster, which.run)
    if run is None:
        raise Problem(404, f"there is no job {jobid} that you may see")
    audit.seen(known, f"report of job {jobid}", [run])
    return report_of(services, access, run)
