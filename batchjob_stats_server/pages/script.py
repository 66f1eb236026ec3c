"""The page of a job's batch script, for its user and administrators only."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from batchjob_stats_db.database import scripts
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentAccess
from batchjob_stats_server.auth.rights import script_access
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.job import JobForm, find_runs
from batchjob_stats_server.pages.rendering.frame import RequestPage
from batchjob_stats_server.pages.rendering.links import Reference
from batchjob_stats_server.services import CurrentServices

router = APIRouter(include_in_schema=False, route_class=TurnRoute)


@router.get("/jobs/{jobid}/script")
def script(
    services: CurrentServices,
    page: RequestPage,
    access: CurrentAccess,
    jobid: JobId,
    form: Annotated[JobForm, Query()],
) -> Response:
    """The script of one run."""
    reference = Reference(jobid, form.cluster, form.submitted, form.run)
    with services.reader.connect() as db:
        run = next(
            (row for row in find_runs(db, access, reference) if reference.matches(row)), None
        )
        ids = [] if run is None else [run["id"]]
        stored_scripts = scripts.of_jobs(db, script_access(page.principal, access), ids)
    if not stored_scripts:
        raise Problem(404, f"there is no batch script of job {jobid} that you may see")
    audit.log_jobs_seen(page.principal, f"script of job {jobid}", stored_scripts)
    return page.render("script.html", job=run, script=stored_scripts[0])
