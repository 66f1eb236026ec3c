"""Pages of jobs, one job with all its runs, and the parts of a run."""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import sqlalchemy as sa
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field, create_model
from sqlalchemy.engine import Connection, RowMapping

from batchjob.runtime.json_reader import parse_json
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries import arrays
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import (
    COLUMN_NAMES,
    COLUMN_TYPES,
    MAX_PAGE_ROWS,
    SORTS,
    After,
    Page,
    SortOrder,
    list_jobs,
    reads_only_its_rows,
)
from batchjob_stats_db.queries.jobs import find_jobs, parts_of
from batchjob_stats_server.api.answers import (
    OpenStream,
    TurnRoute,
    answer,
    list_type,
    row_model,
    run_in_thread,
    select_keys,
    union_of_lists,
)
from batchjob_stats_server.api.params import (
    PREFIX,
    ClusterParams,
    ClusterRows,
    Count,
    Duration,
    Energy,
    InQuery,
    OneOrMore,
    Ratio,
    RowsParams,
    RunParams,
    Size,
    Time,
    Word,
)
from batchjob_stats_server.api.rows import WINDOW_KEYS, columns_of_keys
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.auth.rights import log_jobs_seen, script_access
from batchjob_stats_server.http.problems import Problem

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)

JobId = Annotated[
    Word, Path(description="Job id in the notation of the scheduler: 123, 123_4, 123+1, 123[4].")
]


def run_of(
    db: Connection, access: Access, jobid: str, cluster: str | None, job_id: int | None
) -> RowMapping | None:
    """The run with this row number, or the latest."""
    runs = find_jobs(db, access, jobid, cluster)
    return next((row for row in runs if job_id in (None, row["id"])), None)


class ScriptRow(BaseModel):
    """The batch script of a job."""

    job_id: int = Field(description="`id` of the run.")
    script: str = Field(description="The script, truncated to the size that the site keeps.")
    whole_bytes: int = Field(description="Size of the submitted script.")


@router.get("/jobs/{jobid}/script")
def job_script(
    caller: CurrentCaller, jobid: JobId, params: InQuery[ClusterParams]
) -> list[ScriptRow]:
    """Batch scripts of all runs of a job, latest first; only for its user and for admins.

    An empty list if none is kept: scripts are recorded only if the site has configured it.
    """
    with caller.services.reader.connect() as db:
        runs = find_jobs(db, caller.access, jobid, params.cluster)
        rows = scripts.of_jobs(
            db, script_access(caller.principal, caller.access), [run["id"] for run in runs]
        )
    log_jobs_seen(caller.principal, f"script of job {jobid}", rows)
    return [ScriptRow(**{name: row[name] for name in ScriptRow.model_fields}) for row in rows]


JobRow = create_model(
    "JobRow", __base__=row_model("JobRow", columns()), window_from=(str, ""), window_to=(str, ""),
    array_states=(str | None, Field(None, description="With arrays_once: its jobs by state.")),
)  # fmt: skip


JobPart = Literal["nodes", "node-usage", "steps", "gpus", "emissions"]
PART_ROWS: Mapping[JobPart, type[BaseModel]] = {
    "nodes": row_model("NodeRow", schema.job_node.columns),
    "node-usage": row_model("NodeUsageRow", schema.job_node_usage.columns),
    "steps": row_model("StepRow", schema.job_step.columns),
    "gpus": row_model("GpuRow", schema.job_gpu.columns),
    "emissions": row_model("JobEmissionsRow", schema.job_emissions.columns),
}


Sort = Annotated[str, Field(pattern=f"^-?({'|'.join(SORTS)})$")]


class JobsQuery(ClusterRows):
    """Selects jobs, their order, and the size of a page."""

    user: Word | None = None
    account: Word | None = None
    partition: Word | None = None
    name: Word | None = None
    array_jobid: Word | None = None
    het_jobid: Word | None = None
    started_from: Time | None = None
    started_before: Time | None = None
    running: bool = Field(False, description="If true, only running or suspended jobs.")
    cursor: Word | None = Field(
        None, description="Value from the `next` link of the previous page."
    )
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
    arrays_once: bool = Field(
        False, description="If true, an array is one row, if its running, waiting or else latest "
        "task fits; `array_states` has the numbers of its jobs, peak and energy are those of all."
    )  # fmt: skip
    sort: Sort = Field(
        "-start_time", description="Key to sort by; with a leading `-` in descending order."
    )
    limit: int = Field(100, ge=1, le=MAX_PAGE_ROWS)
    all: bool = Field(
        False, description="If true, all jobs instead of a page, as a stream of CSV or JSON lines."
    )

    def filter(self) -> Filter:
        given = self.model_dump(exclude_none=True)
        same = {name: given[name] for name in Filter._fields if name in given}
        states, words = tuple(self.state), tuple(self.state_word)
        limits = tuple(pair for pair in given.items() if pair[0].endswith(("_least", "_most")))
        return Filter(**same, states=states, state_words=words, limits=limits)

    def order(self) -> SortOrder:
        return SortOrder(SORTS[self.sort.lstrip("-")], self.sort.startswith("-"))

    # The cursor is the end of a page as an opaque text that fits only the query it came from.

    def _query_digest(self) -> str:
        """What must stay the same from page to page."""
        query = self.model_dump_json(exclude={"cursor", "limit", "fields", "format"})
        return hashlib.sha256(query.encode()).hexdigest()[:16]

    def cursor_after(self, end: After) -> str:
        text = json.dumps([self._query_digest(), *end])
        return base64.urlsafe_b64encode(text.encode()).decode()

    def after(self, order: SortOrder) -> After | None:
        """The end of the previous page; raises Problem for a text of another query, or of none."""
        if self.cursor is None:
            return None
        try:
            digest, value, number, part = parse_json(
                base64.b64decode(self.cursor, b"-_", validate=True)
            )
        except (binascii.Error, ValueError, TypeError) as error:
            raise Problem(
                422, "cursor: expected the value from the `next` link of an answer"
            ) from error
        kind = str if isinstance(COLUMN_TYPES[order.key], sa.Text) else float
        valid = isinstance(part, str) and _is_valid_end(value, number, kind)
        if digest != self._query_digest() or not valid:
            raise Problem(422, "cursor: it belongs to another query")
        return After(value, number, part)


def _is_valid_end(value: Any, number: Any, kind: type) -> bool:
    """Whether every database accepts the values, which a client may have made up."""
    if type(number) is not int or not 0 <= number < 2**63:
        return False
    if isinstance(value, str):
        return kind is str and value.isprintable()
    if value is None:
        return True
    numeric = type(value) in (int, float) and kind is not str
    return numeric and math.isfinite(value) and abs(value) < 2**63


@router.get("/jobs", response_model=list_type(JobRow))
async def jobs(caller: CurrentCaller, request: Request, params: InQuery[JobsQuery]) -> Response:
    """Jobs: pending jobs, then the newest; the header `Link` has the URL of the next page."""
    keys = select_keys(params, JobRow)
    job_filter, order = params.filter(), params.order()
    after = params.after(order)
    if params.all and params.format == "json":
        raise Problem(422, "all: expected format=csv or format=ndjson with it")
    limit = MAX_PAGE_ROWS if params.all else params.limit
    list_rows = arrays.list_jobs if params.arrays_once else list_jobs

    def read_page(after: After | None) -> tuple[Response, After | None]:
        names = ("username", *columns_of_keys(keys, COLUMN_NAMES))  # users for the audit log
        page = Page(limit, after, names)
        with caller.services.reader.connect() as db:
            rows, more = list_rows(db, caller.access, job_filter, order, page)
        log_jobs_seen(caller.principal, "jobs", rows)
        return answer(rows, params, JobRow, WINDOW_KEYS), more

    costly = params.all or not reads_only_its_rows(caller.access, job_filter, order)
    response, more = await run_in_thread(caller, partial(read_page, after), costly=costly)
    if not params.all:
        if more:
            given = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
            query = urlencode([*given, ("cursor", params.cursor_after(more))])
            response.headers["Link"] = f'<{quote(request.scope["path"])}?{query}>; rel="next"'
        return response

    async def pages() -> AsyncIterator[bytes]:
        """An error after the first page ends the answer before its end, as clients notice."""
        part, rest = response, more
        yield bytes(part.body)
        while rest:
            part, rest = await run_in_thread(caller, partial(read_page, rest), costly=True)
            body = bytes(part.body)
            yield body.partition(b"\n")[2] if params.format == "csv" else body

    user = caller.principal.person_key()
    return OpenStream(pages(), caller.services.streams, user, media_type=response.media_type)


class PartsQuery(RowsParams, RunParams):
    """Selects a run of the job."""


@router.get("/jobs/{jobid}", response_model=list_type(JobRow))
def job(caller: CurrentCaller, jobid: JobId, params: InQuery[ClusterRows]) -> Response:
    """All runs of a job, latest first; an empty list if the caller may see none."""
    with caller.services.reader.connect() as db:
        rows = find_jobs(db, caller.access, jobid, params.cluster)
    log_jobs_seen(caller.principal, f"job {jobid}", rows)
    return answer(rows, params, JobRow, WINDOW_KEYS)


PART_LISTS = union_of_lists(PART_ROWS.values())


@router.get("/jobs/{jobid}/{part}", response_model=PART_LISTS)
def job_parts(
    caller: CurrentCaller, jobid: JobId, part: JobPart, params: InQuery[PartsQuery]
) -> Response:
    """Nodes, steps, GPUs or emissions of one run of a job; as last measured while it runs."""
    with caller.services.reader.connect() as db:
        run = run_of(db, caller.access, jobid, params.cluster, params.run)
        parts = parts_of(db, caller.access, run["id"]) if run else None
    if run is None or parts is None:
        return answer([], params, PART_ROWS[part])
    log_jobs_seen(caller.principal, f"{part} of job {jobid}", [run])
    return answer(parts[part], params, PART_ROWS[part])
