"""Arrays and het jobs, a row for each."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field
from sqlalchemy.engine import Connection

from batchjob_stats_db.queries import groups as queries
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.groups import Kind
from batchjob_stats_server import audit, cursor
from batchjob_stats_server.identity import Caller, Known
from batchjob_stats_server.keys import chosen, listed, model
from batchjob_stats_server.parameters import DAY, Table, Time, Word, described, read
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.routes.tables import Found, answered
from batchjob_stats_server.rows import lines
from batchjob_stats_server.services import Given

router = APIRouter(prefix=PREFIX)

GroupRow = model("JobGroupRow", queries.columns())
_DEFAULT_DAYS = 7


class GroupsQuery(Table):
    """Which arrays or het jobs: those of which a job fits."""

    kind: Kind = Field(Kind.ARRAY, description="What makes jobs one.")
    cluster: Word | None = None
    user: Word | None = None
    account: Word | None = None
    partition: Word | None = None
    name: Word | None = None
    array_jobid: Word | None = None
    het_jobid: Word | None = None
    started_from: Time | None = Field(None, description="Else seven days ago.")
    started_before: Time | None = None
    running: bool = Field(False, description="True: only those of which a job runs now.")
    limit: int = Field(20, ge=1, le=queries.MOST)
    cursor: Word | None = Field(None, description="From the `next` link of the page before.")

    def question(self) -> str:
        """What must stay the same from page to page."""
        return self.model_dump_json(exclude={"cursor", "limit", "fields", "format"})

    def filter(self, now: float) -> Filter:
        """The same for the database."""
        same = Filter(**self.model_dump(include=set(Filter._fields)))
        if same.started_from is not None or same.running:
            return same
        return same._replace(started_from=int(now) - _DEFAULT_DAYS * DAY)


@router.get("/job-groups", response_model=listed(GroupRow), openapi_extra=described(GroupsQuery))
async def job_groups(
    services: Given, known: Known, access: Caller, request: Request,
    which: Annotated[GroupsQuery, Depends(read(GroupsQuery))],
) -> Response:  # fmt: skip
    """Arrays, or het jobs, by the latest start of one of their jobs, with all jobs in the sums."""
    keys = chosen(which.fields, GroupRow)
    after = cursor.decode(which.question(), which.cursor, float) if which.cursor else None

    def ask(db: Connection) -> Found:
        rows, more = queries.groups(
            db, access, which.kind, which.limit, which.filter(services.clock()), after
        )
        return Found(lines(rows, keys, which.format), more, audit.whose(rows))

    answer = await answered(services, access, which, keys, ask)
    audit.saw(known, f"{which.kind} jobs", answer.users)
    return answer.response(cursor.link(request, which.question(), answer.more))
