"""Jobs: pages of them, one with all its runs, and the parts of one."""

import functools
import operator
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field, create_model
from sqlalchemy.engine import Connection

from batchjob.states import JobState
from batchjob_stats_db import schema
from batchjob_stats_db.queries.derived import columns
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.jobs import parts_of
from batchjob_stats_db.queries.pages import MOST, SORTS, Order, numbers, reads_only_its_rows
from batchjob_stats_db.queries.whole import NAMES, Names, shaped
from batchjob_stats_server import audit, cursor, windows
from batchjob_stats_server.identity import Caller, Known
from batchjob_stats_server.keys import Row, behind, chosen, listed, model
from batchjob_stats_server.parameters import (
    Duration,
    OneOrMore,
    Ratio,
    Table,
    Time,
    Word,
    described,
    read,
)
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.routes.tables import Found, answered, answered_alone
from batchjob_stats_server.rows import answer, line
from batchjob_stats_server.runs import runs_of
from batchjob_stats_server.services import Given

lists = APIRouter(prefix=PREFIX)
router = APIRouter(prefix=PREFIX)

JobRow = create_model("JobRow", __base__=model("JobRow", columns()), **windows.FIELDS)


class Part(StrEnum):
    """What a job has several of."""

    NODES = "nodes"
    STEPS = "steps"
    GPUS = "gpus"
    EMISSIONS = "emissions"


PART_ROWS = {
    Part.NODES: model("NodeRow", schema.job_node.columns),
    Part.STEPS: model("StepRow", schema.job_step.columns),
    Part.GPUS: model("GpuRow", schema.job_gpu.columns),
    Part.EMISSIONS: model("JobEmissionsRow", schema.job_emissions.columns),
}


_SORTS = {"user" if name == "username" else name: name for name in SORTS}
Sort = Annotated[str, Field(pattern=f"^-?({'|'.join(_SORTS)})$")]


_ROWS = 100  # of a page, where nobody says how many


class JobsQuery(Table):
    """Which jobs, in which order, and how many."""

    cluster: Word | None = None
    user: Word | None = None
    account: Word | None = None
    partition: Word | None = None
    qos: Word | None = None
    state: Annotated[list[JobState], OneOrMore] = Field([], description="One or several states.")
    name: Word | None = None
    tool: Word | None = None
    node: Word | None = None
    started_from: Time | None = None
    started_before: Time | None = None
    array_jobid: Word | None = None
    het_jobid: Word | None = None
    ended_from: Time | None = None
    ended_before: Time | None = None
    elapsed_at_least: Duration | None = Field(None, description="Seconds.")
    elapsed_at_most: Duration | None = Field(None, description="Seconds.")
    cpu_efficiency_at_least: Ratio | None = Field(None, description="1 is all of it.")
    cpu_efficiency_at_most: Ratio | None = None
    memory_efficiency_at_least: Ratio | None = None
    memory_efficiency_at_most: Ratio | None = None
    gpu_utilization_at_least: Ratio | None = None
    gpu_utilization_at_most: Ratio | None = None
    gpus_at_least: int | None = Field(None, ge=0, lt=2**31, description="Allocated.")
    running: bool = Field(False, description="True: only jobs that run now or are suspended.")
    started: bool = Field(
        True, description="False: jobs without a start, which wait or were cancelled before."
    )
    sort: Sort = Field(
        "-start_time", description="A key of the rows; with `-` before it the largest first."
    )
    limit: int = Field(_ROWS, ge=1, le=MOST)
    cursor: Word | None = Field(None, description="From the `next` link of the page before.")

    def question(self) -> str:
        """What must stay the same from page to page."""
        return self.model_dump_json(exclude={"cursor", "limit", "fields", "format"})

    def filter(self) -> Filter:
        """The same for the database."""
        same = self.model_dump(include=set(Filter._fields))
        return Filter(**same, states=tuple(self.state))

    def order(self) -> Order:
        """What the rows are sorted by."""
        return Order(_SORTS[self.sort.lstrip("-")], self.sort.startswith("-"))


_NOTED = ("username", "start_time", "end_time")  # whose jobs; and what a window is made of


@lists.get("/jobs", response_model=listed(JobRow), openapi_extra=described(JobsQuery))
async def jobs(
    services: Given, known: Known, access: Caller, request: Request,
    which: Annotated[JobsQuery, Depends(read(JobsQuery))],
) -> Response:  # fmt: skip
    """Jobs, the newest first; the header `Link` leads to the next page."""
    keys = chosen(which.fields, JobRow)
    order = which.order()
    kind = str if isinstance(SORTS[order.key].type, sa.Text) else float
    after = cursor.decode(which.question(), which.cursor, kind) if which.cursor else None
    wanted = which.filter()

    def shape(names: Names) -> Callable[[Row], tuple[str, bytes]]:
        write, whose = line(names, keys, which.format, windows.MADE), names.index("username")
        return lambda row: (row[whose], write(row))

    def ask(db: Connection) -> Found:
        ids, more = numbers(
            db, access, which.limit, wanted, after, order=order, started=which.started
        )
        found = shaped(db, ids, (*_NOTED, *behind(keys, NAMES)), shape)
        return Found([text for _, text in found], more, frozenset(user for user, _ in found))

    # Other keys have a statement of their own, which may have to be made first.
    plain = which.limit <= _ROWS and which.fields is None
    if plain and reads_only_its_rows(access, wanted, order):
        found = await answered_alone(services, which, keys, ask)
    else:
        found = await answered(services, access, which, keys, ask)
    audit.saw(known, "jobs", found.users)
    return found.response(cursor.link(request, which.question(), found.more))


class RunsQuery(Table):
    """On which cluster, where ids are used on several."""

    cluster: Word | None = None


JobId = Annotated[Word, Path(description="As the scheduler writes it: 123, 123_4, 123+1, 123[4].")]


@router.get("/jobs/{jobid}", response_model=listed(JobRow))
def job(
    services: Given, known: Known, access: Caller, jobid: JobId,
    which: Annotated[RunsQuery, Query()],
) -> Response:  # fmt: skip
    """All runs of a job, the latest first; an empty list where there is none to be seen."""
    keys = chosen(which.fields, JobRow)
    with services.reader.connect() as db:
        rows = runs_of(db, access, jobid, which.cluster)
    audit.seen(known, f"job {jobid}", rows)
    return answer(rows, keys, which.format, windows.MADE)


_AnyPart = functools.reduce(operator.or_, map(listed, PART_ROWS.values()))


@router.get("/jobs/{jobid}/{part}", response_model=_AnyPart)
def job_parts(
    services: Given, known: Known, access: Caller, jobid: JobId, part: Part,
    which: Annotated[RunsQuery, Query()],
) -> Response:  # fmt: skip
    """The nodes, steps, GPUs or emissions of all runs of a job; `job_id` is the run's `id`."""
    keys = chosen(which.fields, PART_ROWS[part])
    with services.reader.connect() as db:
        runs = runs_of(db, access, jobid, which.cluster)
        found = [parts_of(db, access, run["id"]) or {} for run in runs]
    audit.seen(known, f"{part} of job {jobid}", runs)
    return answer([row for parts in found for row in parts.get(part, ())], keys, which.format)
