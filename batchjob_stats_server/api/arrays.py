"""Arrays and het jobs, one row for each."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from sqlalchemy.engine import Connection

from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries import arrays as queries
from batchjob_stats_db.queries.arrays import JobGroupKind
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_server.api.answers import (
    answer,
    decode_cursor,
    list_type,
    next_page_link,
    query_database,
    row_model,
    select_keys,
)
from batchjob_stats_server.api.params import PREFIX, JobGroupParams, Time
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentCaller

router = APIRouter(prefix=PREFIX)

GroupRow = row_model("JobGroupRow", queries.columns())
_DEFAULT_DAYS = 7


class GroupsQuery(JobGroupParams):
    """Selects the arrays or het jobs of which at least one job fits."""

    kind: JobGroupKind = Field(JobGroupKind.ARRAY, description="How jobs are grouped.")
    started_from: Time | None = Field(None, description="Default: seven days ago.")
    running: bool = Field(False, description="If true, only groups with a running job.")
    limit: int = Field(20, ge=1, le=queries.MAX_PAGE_GROUPS)

    def filter(self, now: float) -> Filter:
        same = Filter(**self.model_dump(include=set(Filter._fields)))
        if same.started_from is not None or same.running:
            return same
        return same._replace(started_from=int(now) - _DEFAULT_DAYS * DAY)


@router.get("/job-groups", response_model=list_type(GroupRow))
async def job_groups(
    caller: CurrentCaller,
    request: Request,
    params: Annotated[GroupsQuery, Query()],
) -> Response:
    """Arrays or het jobs, sorted by the latest start of their jobs; sums include all their jobs."""
    keys = select_keys(params.fields, GroupRow)
    after = decode_cursor(params.query_key(), params.cursor, float) if params.cursor else None
    job_filter = params.filter(caller.services.clock())

    def page(db: Connection) -> Response:
        rows, more = queries.groups(db, caller.access, params.kind, params.limit, job_filter, after)
        audit.log_jobs_seen(caller.principal, f"{params.kind} jobs", rows)
        response = answer(rows, keys, params.format)
        response.headers.update(next_page_link(request, params, more))
        return response

    return await query_database(caller, page)
