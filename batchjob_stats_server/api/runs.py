"""Finds the runs of a job that a caller may see, by id; the route of their batch scripts."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import scripts
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries.jobs import AmbiguousIdError, find_jobs
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import PREFIX, ClusterParams, Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.auth.rights import script_access
from batchjob_stats_server.http.problems import Problem

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)

JobId = Annotated[
    Word, Path(description="Job id in the notation of the scheduler: 123, 123_4, 123+1, 123[4].")
]


def runs_of(
    db: Connection, access: Access, jobid: str, cluster: str | None
) -> Sequence[RowMapping]:
    """All runs, the latest first; Problem 422 for a prefix of several ids."""
    try:
        return find_jobs(db, access, jobid, cluster)
    except AmbiguousIdError as error:
        raise Problem(422, str(error)) from error


def run_of(
    db: Connection, access: Access, jobid: str, cluster: str | None, job_id: int | None
) -> RowMapping | None:
    """The run with this row number, or the latest."""
    runs = runs_of(db, access, jobid, cluster)
    return next((row for row in runs if job_id in (None, row["id"])), None)


class ScriptRow(BaseModel):
    """The batch script of a job."""

    job_id: int = Field(description="`id` of the run.")
    script: str = Field(description="The script, truncated to the size that the site keeps.")
    whole_bytes: int = Field(description="Size of the submitted script.")


@router.get("/jobs/{jobid}/script")
def job_script(
    caller: CurrentCaller, response: Response, jobid: JobId,
    params: Annotated[ClusterParams, Query()],
) -> list[ScriptRow]:  # fmt: skip
    """Batch scripts of all runs of a job, latest first; only for its user and for admins.

    An empty list if none is kept: scripts are recorded only if the site has configured it.
    """
    response.headers["Cache-Control"] = "private, no-store"
    with caller.services.reader.connect() as db:
        runs = runs_of(db, caller.access, jobid, params.cluster)
        rows = scripts.of_jobs(
            db, script_access(caller.principal, caller.access), [run["id"] for run in runs]
        )
    audit.log_jobs_seen(caller.principal, f"script of job {jobid}", rows)
    return [ScriptRow(**{name: row[name] for name in ScriptRow.model_fields}) for row in rows]
