"""The page of a job's batch script, for its user and for admins alone."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from batchjob_stats_db.database import scripts
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.auth.rights import script_access
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.job import JobForm, find
from batchjob_stats_server.pages.rendering.frame import Shown
from batchjob_stats_server.pages.rendering.links import Reference
from batchjob_stats_server.services import Given

router = APIRouter(include_in_schema=False)


@router.get("/jobs/{jobid}/script")
def script(
    services: Given, page: Shown, access: Caller, jobid: JobId, which: Annotated[JobForm, Query()]
) -> Response:
    """The script of one run."""
    wanted = Reference(jobid, which.cluster, which.submitted, which.run)
    with services.reader.connect() as db:
        run = next((row for row in find(db, access, wanted) if wanted.means(row)), None)
        ids = [] if run is None else [run["id"]]
        found = scripts.of_jobs(db, script_access(page.known, access), ids)
    if not found:
        raise Problem(404, f"there is no batch script of job {jobid} that you may see")
    audit.seen(page.known, f"script of job {jobid}", found)
    return page.show("script.html", job=run, script=found[0])
