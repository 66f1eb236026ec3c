"""Pages of jobs, one job with all its runs, and the parts of a run."""

import functools
import operator
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, create_model
from sqlalchemy.engine import Connection

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import (
    COLUMN_NAMES,
    MAX_PAGE_ROWS,
    SORTS,
    After,
    Page,
    SortOrder,
    list_jobs,
    reads_only_its_rows,
)
from batchjob_stats_db.queries.jobs import parts_of
from batchjob_stats_server.api.answers import (
    TurnRoute,
    answer,
    decode_cursor,
    list_type,
    next_page_link,
    query_database,
    row_model,
    select_keys,
)
from batchjob_stats_server.api.params import (
    PREFIX,
    ClusterRows,
    Count,
    Duration,
    Energy,
    JobGroupParams,
    OneOrMore,
    Ratio,
    RowsParams,
    RunParams,
    Size,
    Time,
    Word,
)
from batchjob_stats_server.api.rows import WINDOW_KEYS, columns_of_keys
from batchjob_stats_server.api.runs import JobId, run_of, runs_of
from batchjob_stats_server.api.samples import OpenStream
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.http.problems import Problem

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)

JobRow = create_model(
    "JobRow", __base__=row_model("JobRow", columns()), window_from=(str, ""), window_to=(str, "")
)


JobPart = Literal["nodes", "node-usage", "steps", "gpus", "emissions"]
PART_ROWS: Mapping[JobPart, type[BaseModel]] = {
    "nodes": row_model("NodeRow", schema.job_node.columns),
    "node-usage": row_model("NodeUsageRow", schema.job_node_usage.columns),
    "steps": row_model("StepRow", schema.job_step.columns),
    "gpus": row_model("GpuRow", schema.job_gpu.columns),
    "emissions": row_model("JobEmissionsRow", schema.job_emissions.columns),
}


_SORTS = {"user" if name == "username" else name: name for name in SORTS}
Sort = Annotated[str, Field(pattern=f"^-?({'|'.join(_SORTS)})$")]


class JobsQuery(JobGroupParams):
    """Selects jobs, their order, and the size of a page."""

    qos: Word | None = None
    state: Annotated[list[JobState], OneOrMore] = Field([], description="One or several states.")
    state_word: Annotated[list[Word], OneOrMore] = Field(
        [], description="State as named by the source, such as stopped."
    )
    name_contains: Word | None = Field(None, description="Part of the name, case-insensitive.")
    tool: Word | None = None
    record_id: Word | None = Field(None, description="Id given by the user or by another system.")
    node: Word | None = None
    ended_from: Time | None = None
    ended_before: Time | None = None
    elapsed_at_least: Duration | None = Field(
        None, description="Seconds, or a duration such as 2h or 1h30m."
    )
    elapsed_at_most: Duration | None = None
    cpu_efficiency_at_least: Ratio | None = Field(
        None, description="A fraction such as 0.25 or 25%."
    )
    cpu_efficiency_at_most: Ratio | None = None
    memory_efficiency_at_least: Ratio | None = None
    memory_efficiency_at_most: Ratio | None = None
    gpu_utilization_at_least: Ratio | None = None
    gpu_utilization_at_most: Ratio | None = None
    gpus_at_least: Count | None = Field(None, description="Allocated GPUs.")
    gpus_at_most: Count | None = None
    nodes_at_least: Count | None = Field(None, description="Allocated nodes.")
    nodes_at_most: Count | None = None
    memory_at_least: Size | None = Field(
        None, description="Peak memory: bytes, or a size such as 16G."
    )
    memory_at_most: Size | None = None
    energy_at_least: Energy | None = Field(
        None, description="Joules, or an energy such as 1.5 kWh."
    )
    energy_at_most: Energy | None = None
    started: bool | None = Field(
        None,
        description="True: only jobs that have started. False: only jobs that have not started, "
        "because they are pending or were cancelled before. Default: pending jobs, then started "
        "jobs, then the others.",
    )
    sort: Sort = Field(
        "-start_time", description="Key to sort by; with a leading `-` in descending order."
    )
    limit: int = Field(100, ge=1, le=MAX_PAGE_ROWS)
    all: bool = Field(
        False, description="If true, all jobs instead of a page, as a stream of CSV or JSON lines."
    )

    def filter(self) -> Filter:
        same = self.model_dump(include=set(Filter._fields))
        return Filter(**same, states=tuple(self.state), state_words=tuple(self.state_word))

    def order(self) -> SortOrder:
        return SortOrder(_SORTS[self.sort.lstrip("-")], self.sort.startswith("-"))


@router.get("/jobs", response_model=list_type(JobRow))
async def jobs(
    caller: CurrentCaller, request: Request, params: Annotated[JobsQuery, Query()],
) -> Response:  # fmt: skip
    """Jobs: pending jobs, then the newest; the header `Link` has the URL of the next page."""
    keys = select_keys(params.fields, JobRow)
    order = params.order()
    kind = str if isinstance(SORTS[order.key], sa.Text) else float
    after = decode_cursor(params.query_key(), params.cursor, kind) if params.cursor else None
    job_filter = params.filter()
    if params.all and params.format == "json":
        raise Problem(422, "all: expected format=csv or format=ndjson with it")
    limit = MAX_PAGE_ROWS if params.all else params.limit

    def page(after: After | None, db: Connection) -> tuple[Response, After | None]:
        names = ("username", *columns_of_keys(keys, COLUMN_NAMES))  # users for the audit log
        rows, more = list_jobs(db, caller.access, job_filter, order, Page(limit, after, names))
        audit.log_jobs_seen(caller.principal, "jobs", rows)
        return answer(rows, keys, params.format, WINDOW_KEYS), more

    costly = params.all or not reads_only_its_rows(caller.access, job_filter, order)
    response, more = await query_database(caller, partial(page, after), costly=costly)
    if not params.all:
        response.headers.update(next_page_link(request, params, more))
        return response

    async def pages() -> AsyncIterator[bytes]:
        """An error after the first page ends the answer before its end, as clients notice."""
        part, rest = response, more
        yield bytes(part.body)
        while rest:
            part, rest = await query_database(caller, partial(page, rest))
            body = bytes(part.body)
            yield body.partition(b"\n")[2] if params.format == "csv" else body

    user = caller.principal.person_key()
    return OpenStream(pages(), caller.services.streams, user, media_type=response.media_type)


class PartsQuery(RowsParams, RunParams):
    """Selects a run of the job."""


@router.get("/jobs/{jobid}", response_model=list_type(JobRow))
def job(
    caller: CurrentCaller, jobid: JobId, params: Annotated[ClusterRows, Query()],
) -> Response:  # fmt: skip
    """All runs of a job, latest first; an empty list if the caller may see none."""
    keys = select_keys(params.fields, JobRow)
    with caller.services.reader.connect() as db:
        rows = runs_of(db, caller.access, jobid, params.cluster)
    audit.log_jobs_seen(caller.principal, f"job {jobid}", rows)
    return answer(rows, keys, params.format, WINDOW_KEYS)


PART_ROWS_UNION = functools.reduce(operator.or_, map(list_type, PART_ROWS.values()))


@router.get("/jobs/{jobid}/{part}", response_model=PART_ROWS_UNION)
def job_parts(
    caller: CurrentCaller, jobid: JobId, part: JobPart,
    params: Annotated[PartsQuery, Query()],
) -> Response:  # fmt: skip
    """Nodes, steps, GPUs or emissions of one run of a job; as last measured while it runs."""
    keys = select_keys(params.fields, PART_ROWS[part])
    with caller.services.reader.connect() as db:
        run = run_of(db, caller.access, jobid, params.cluster, params.run)
        parts = parts_of(db, caller.access, run["id"]) if run else None
    if run is None or parts is None:
        return answer([], keys, params.format)
    audit.log_jobs_seen(caller.principal, f"{part} of job {jobid}", [run])
    return answer(parts[part], keys, params.format)
