"""Jobs: pages of them, one with all its runs, and the parts of one."""

import functools
import operator
from enum import StrEnum
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, create_model

from batchjob.states import JobState
from batchjob_stats_db import schema
from batchjob_stats_db.queries.jobs import MOST, Filter, columns, newest, parts_of
from batchjob_stats_server import audit, cursor, windows
from batchjob_stats_server.identity import Caller, Known
from batchjob_stats_server.parameters import Duration, OneOrMore, Table, Time, Word
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.rows import answer, chosen, listed, model
from batchjob_stats_server.runs import runs_of
from batchjob_stats_server.services import Given

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


class JobsQuery(Table):
    """Which jobs, and how many."""

    cluster: Word | None = None
    user: Word | None = None
    account: Word | None = None
    partition: Word | None = None
    qos: Word | None = None
    state: Annotated[list[JobState], OneOrMore] = Field([], description="One or several states.")
    array_jobid: Word | None = None
    name: Word | None = None
    node: Word | None = None
    started_from: Time | None = None
    started_before: Time | None = None
    elapsed_at_least: Duration | None = Field(None, description="Seconds.")
    elapsed_at_most: Duration | None = Field(None, description="Seconds.")
    started: bool = Field(
        True, description="False: jobs without a start, which wait or were cancelled before."
    )
    sort: Literal["-start_time", "start_time"] = Field(
        "-start_time", description="Newest or oldest first."
    )
    limit: int = Field(100, ge=1, le=MOST)
    cursor: Word | None = Field(None, description="From the `next` link of the page before.")

    def question(self) -> str:
        """What must stay the same from page to page."""
        return self.model_dump_json(exclude={"cursor", "limit", "fields", "format"})

    def filter(self) -> Filter:
        """The same for the database."""
        same = self.model_dump(include=set(Filter._fields))
        return Filter(**same, states=tuple(self.state))


@router.get("/jobs", response_model=listed(JobRow))
def jobs(
    services: Given, known: Known, access: Caller, request: Request,
    which: Annotated[JobsQuery, Query()],
) -> Response:  # fmt: skip
    """Jobs by start time; the header `Link` leads to the next page."""
    keys = chosen(which.fields, JobRow)
    after = cursor.decode(which.question(), which.cursor) if which.cursor else None
    with services.reader.connect() as db:
        rows = newest(
            db, access, which.limit, which.filter(), after,
            started=which.started, oldest_first=which.sort == "start_time",
        )  # fmt: skip
    audit.seen(known, "jobs", rows)
    headers = {}
    if len(rows) == which.limit:
        word = cursor.encode(which.question(), rows[-1]["start_time"], rows[-1]["id"])
        query = request.url.include_query_params(cursor=word).query
        headers["Link"] = f'<{request.url.path}?{query}>; rel="next"'
    return answer(windows.added(rows), keys, which.format, headers)


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
    return answer(windows.added(rows), keys, which.format)


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
