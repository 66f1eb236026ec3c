"""The batch scripts of a job's runs."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from batchjob_stats_db.database import scripts
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.api.params import Query as Parameters
from batchjob_stats_server.api.params import Word
from batchjob_stats_server.api.runs import runs_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentAccess, CurrentPrincipal
from batchjob_stats_server.auth.rights import script_access
from batchjob_stats_server.services import CurrentServices

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)


class ScriptRow(BaseModel):
    """The batch script of a job."""

    job_id: int = Field(description="`id` of the run.")
    script: str = Field(description="The script, truncated to the size that the site keeps.")
    whole_bytes: int = Field(description="Size of the submitted script.")


class ScriptQuery(Parameters):
    """On which cluster, where ids are used on several."""

    cluster: Word | None = None


@router.get("/jobs/{jobid}/script")
def job_script(
    services: CurrentServices, principal: CurrentPrincipal, access: CurrentAccess,
    response: Response, jobid: JobId,
    params: Annotated[ScriptQuery, Query()],
) -> list[ScriptRow]:  # fmt: skip
    """Batch scripts of all runs of a job, latest first; only for its user and for admins.

    An empty list if none is kept: scripts are recorded only if the site has configured it.
    """
    response.headers["Cache-Control"] = "private, no-store"
    with services.reader.connect() as db:
        runs = runs_of(db, access, jobid, params.cluster)
        rows = scripts.of_jobs(db, script_access(principal, access), [run["id"] for run in runs])
    audit.log_jobs_seen(principal, f"script of job {jobid}", rows)
    return [ScriptRow(**{name: row[name] for name in ScriptRow.model_fields}) for row in rows]
