"""Finds the runs of a job that a caller may see, by id."""

from collections.abc import Sequence

from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries.ids import AmbiguousIdError, find_jobs
from batchjob_stats_server.http.problems import Problem


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
