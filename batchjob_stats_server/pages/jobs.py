"""Lists of jobs: running ones first, then waiting ones, then ended ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import RedirectResponse
from markupsafe import Markup
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob.judgements import FAILED_STATES, thresholds
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import day_of
from batchjob_stats_db.queries import jobs as queries
from batchjob_stats_db.queries import stats
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.gpus import utilizations
from batchjob_stats_db.queries.job_rows import rows_by_ids
from batchjob_stats_db.queries.paging import (
    MAX_PAGE_ROWS,
    SORTS,
    TooManyError,
    find_ids,
    reads_only_its_rows,
)
from batchjob_stats_server.api import PREFIX, cursor
from batchjob_stats_server.api.answers import run_in_thread
from batchjob_stats_server.api.jobs import JobsQuery
from batchjob_stats_server.api.me import refuse_simple_json
from batchjob_stats_server.api.params import OneOrMore
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import CurrentAccess
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages import job_columns
from batchjob_stats_server.pages.job_columns import Column
from batchjob_stats_server.pages.rendering import job_table, links
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage
from batchjob_stats_server.pages.rendering.job_table import (
    JOB_COLUMNS,
    WAITING_JOB_COLUMNS,
    ListColumn,
    ListLayout,
    TableContext,
)
from batchjob_stats_server.services import CurrentServices, Services

router = APIRouter(include_in_schema=False)

ENDED_STATES = tuple(state for state in JobState if not state.is_live)
_MAX_LIVE_ROWS = 50  # maximum running and waiting jobs shown in addition to those that ended


class FilterField(NamedTuple):
    """A field of the form."""

    label: str
    example: str = ""  # an example of its value


# In the order of the form.
FILTERS = {
    "user": FilterField("User"),
    "account": FilterField("Account"),
    "cluster": FilterField("Cluster"),
    "partition": FilterField("Partition"),
    "qos": FilterField("QOS"),
    "name_contains": FilterField("Name contains"),
    "name": FilterField("Name is"),
    "node": FilterField("Node"),
    "array_jobid": FilterField("Array"),
    "started_from": FilterField("Started from"),
    "started_before": FilterField("Started before"),
    "elapsed_at_least": FilterField("Elapsed, at least", "2h"),
    "elapsed_at_most": FilterField("Elapsed, at most", "1h30m"),
    "nodes_at_least": FilterField("Nodes, at least", "2"),
    "nodes_at_most": FilterField("Nodes, at most"),
    "gpus_at_least": FilterField("GPUs, at least", "1"),
    "gpus_at_most": FilterField("GPUs, at most"),
    "memory_at_least": FilterField("Peak memory, at least", "16G"),
    "memory_at_most": FilterField("Peak memory, at most", "500M"),
    "energy_at_least": FilterField("Energy, at least", "1.5 kWh"),
    "energy_at_most": FilterField("Energy, at most"),
    "cpu_efficiency_at_most": FilterField("CPU used, at most", "25%"),
    "memory_efficiency_at_most": FilterField("Memory used, at most", "20%"),
    "gpu_utilization_at_most": FilterField("GPU used, at most", "10%"),
}
_TIME_FIELDS = ("started_from", "started_before")


class Preset(NamedTuple):
    """A frequently needed list."""

    title: str
    path: str


class JobsForm(JobsQuery):
    """The filters of the API as a form."""

    limit: int = Field(50, ge=1, le=200)
    started: bool = True  # waiting jobs have their own section
    columns: Annotated[list[Column], OneOrMore] = Field([])


class JobsSection(NamedTuple):
    """Jobs in the same state."""

    key: str
    title: str
    rows: Sequence[RowMapping]
    has_more: bool = False  # whether there are more
    next_page: str | None = None
    columns: Sequence[ListColumn] = ()
    body: Markup = Markup()


class LiveSection(NamedTuple):
    """Running or waiting jobs."""

    key: str
    title: str
    query: Callable[..., list[RowMapping]]
    row_columns: tuple[str, ...]
    form_fields: Mapping[str, Any]  # fields of the form that select only these jobs
    parameters: Mapping[str, str]  # the same as parameters of the page's address


_RUNNING = LiveSection(
    "running", "Running", queries.running, JOB_COLUMNS, {"running": True}, {"running": "true"}
)
_WAITING = LiveSection(
    "waiting", "Waiting", queries.pending, WAITING_JOB_COLUMNS, {"state": [JobState.PENDING]},
    {"state": JobState.PENDING.value},
)  # fmt: skip


class ActiveFilter(NamedTuple):
    """An active filter, and the address of the page without it."""

    name: str
    value: Any
    without: str


@router.get("/", dependencies=[Depends(refuse_simple_json)])
async def my_jobs(
    services: CurrentServices,
    page: RequestPage,
    access: CurrentAccess,
    form: Annotated[JobsForm, Query()],
) -> Response:
    """The caller's own jobs."""
    own = form.model_copy(update={"user": page.principal.user})
    return await _list_response(services, page, access, own, is_own=True)


@router.get("/jobs")
async def all_jobs(
    services: CurrentServices,
    page: RequestPage,
    access: CurrentAccess,
    form: Annotated[JobsForm, Query()],
) -> Response:
    """All jobs that the caller may see."""
    return await _list_response(services, page, access, form, is_own=False)


async def _list_response(
    services: Services, page: PageRenderer, access: Access, form: JobsForm, *, is_own: bool
) -> Response:
    def render_page() -> Response:
        return _render_list(services, page, access, form, is_own)

    costly = not reads_only_its_rows(access, form.filter(), form.order())
    return await run_in_thread(services, page.principal, render_page, costly=costly)


def _render_list(
    services: Services, page: PageRenderer, access: Access, form: JobsForm, is_own: bool
) -> Response:
    if form.columns:
        answer = RedirectResponse(page.address(columns=None), 303)
        job_columns.store_choice(page.request, answer, form.columns)
        return answer
    columns = job_columns.chosen_columns(page.request)
    with services.reader.connect() as db:
        sections = _query_sections(db, page, access, form)
        rows = [row for section in sections for row in section.rows]
        sparklines = page.environment.sparklines.get(
            services, db, access, rows, job_columns.sparkline_kinds(columns)
        )
        gpu_job_ids = [row["id"] for row in rows if row["allocated_gpus"]]
        gpus = utilizations(db, gpu_job_ids)
        clusters = list(dict.fromkeys(row["name"] for row in stats.clusters(db)))
    audit.log_jobs_seen(page.principal, "jobs", rows)
    several_users = not is_own and len({row["username"] for row in rows}) != 1
    context = TableContext(page.now, gpus, sparklines)
    return page.render(
        "jobs.html", is_own=is_own, form=form, clusters=clusters,
        sections=[_with_table(each, context, columns, several_users, len(clusters) > 1)
                  for each in sections],
        columns=columns, titles=job_columns.TITLES, presets=_presets(page),
        active_filters=_active_filters(page, form, is_own), csv_address=_csv_address(page, is_own),
        states=list(JobState), filters=FILTERS, time_fields=_TIME_FIELDS,
        is_first_page=form.cursor is None, several_users=several_users,
    )  # fmt: skip


def _with_table(
    section: JobsSection, context: TableContext, chosen: frozenset[Column], several_users: bool,
    several_clusters: bool,
) -> JobsSection:  # fmt: skip
    """The section with its rendered table."""
    is_waiting = section.key == "waiting"
    gpus_column = "requested_gpus" if is_waiting else "allocated_gpus"
    has_gpus = any(row[gpus_column] for row in section.rows)
    has_measurements = context.sparklines is not None
    layout = ListLayout(
        chosen, is_waiting, has_gpus, several_users, several_clusters, has_measurements
    )
    table_columns = job_table.columns(layout)
    return section._replace(
        columns=table_columns, body=job_table.body(section.rows, table_columns, context)
    )


def _query_sections(
    db: Connection, page: PageRenderer, access: Access, form: JobsForm
) -> list[JobsSection]:
    """All sections; a following page has only the one that it continues."""
    job_filter = form.filter()
    sections = []
    is_first_page = form.cursor is None
    if form.started and (is_first_page or form.running):
        sections.append(_live_section(db, page, access, form, _RUNNING))
    if form.started and not form.running and (is_first_page or form.state == [JobState.PENDING]):
        sections.append(_live_section(db, page, access, form, _WAITING))
    ended_states = [state for state in form.state if not state.is_live] or (
        ENDED_STATES if not form.state else []
    )
    if ended_states and not form.running:
        ended_filter = job_filter._replace(states=tuple(ended_states))
        sections.append(_ended_section(db, page, access, form, ended_filter))
    unique_sections = _without_repeats(sections)
    return [section for section in unique_sections if section.rows or section.key == "ended"]


def _without_repeats(sections: Sequence[JobsSection]) -> list[JobsSection]:
    """Keep a job that ended while the sections were queried only in the last of them."""
    unique_sections: list[JobsSection] = []
    later_ids: set[int] = set()
    for section in reversed(sections):
        rows = [row for row in section.rows if row["id"] not in later_ids]
        later_ids |= {row["id"] for row in rows}
        unique_sections.insert(0, section._replace(rows=rows))
    return unique_sections


def _live_section(
    db: Connection, page: PageRenderer, access: Access, form: JobsForm, kind: LiveSection
) -> JobsSection:
    """The newest running or waiting jobs, with a link to a list of all of them."""
    section_form = form.model_copy(update=kind.form_fields)
    after = cursor.decode(section_form.query_key(), form.cursor, float) if form.cursor else None
    max_rows = form.limit if after else min(form.limit, _MAX_LIVE_ROWS)
    rows = kind.query(db, access, max_rows + 1, form.filter(), kind.row_columns, after)
    shown, next_page = rows[:max_rows], None
    if len(rows) > max_rows:
        next_cursor = cursor.encode(section_form.query_key(), queries.position(shown[-1]))
        next_page = page.address(**kind.parameters, cursor=next_cursor)
    return JobsSection(kind.key, kind.title, shown, bool(next_page and not after), next_page)


def _ended_section(
    db: Connection, page: PageRenderer, access: Access, form: JobsForm, job_filter: Filter
) -> JobsSection:
    question, order = form.query_key(), form.order()
    cursor_type = str if isinstance(SORTS[order.key].type, sa.Text) else float
    after = cursor.decode(question, form.cursor, cursor_type) if form.cursor else None
    try:
        ids, more = find_ids(
            db, access, form.limit, job_filter, after, order=order, started=form.started
        )
    except TooManyError as error:
        raise Problem(422, str(error)) from error
    next_page = page.address(cursor=cursor.encode(question, more)) if more else None
    title = "Ended" if form.started else "Ended without starting"
    return JobsSection("ended", title, rows_by_ids(db, ids, JOB_COLUMNS), next_page=next_page)


def _active_filters(page: PageRenderer, form: JobsForm, is_own: bool) -> list[ActiveFilter]:
    field_names = [name for name in FILTERS if not (is_own and name == "user")]
    filters = [
        ActiveFilter(
            name,
            getattr(form, name) if name in _TIME_FIELDS else page.request.query_params.get(name),
            page.address(**{name: None, "cursor": None}),
        )
        for name in field_names
        if getattr(form, name) is not None
    ]
    if form.state:
        words = ", ".join(state.value for state in form.state)
        filters.append(ActiveFilter("state", words, page.address(state=None, cursor=None)))
    return filters


def _presets(page: PageRenderer) -> list[Preset]:
    here, limits = page.request.url.path, thresholds()
    held = f"{limits.idle_after:g}s"

    def preset(title: str, **query: object) -> Preset:
        return Preset(title, links.path(*here.strip("/").split("/"), **query))

    return [
        preset("All"),
        preset("Today", started_from=day_of(page.now)),
        preset("Failed", state=FAILED_STATES),
        preset("Wasteful", cpu_efficiency_at_most=_percent(limits.low_use), elapsed_at_least=held),
        preset("With GPUs", gpus_at_least=1),
        preset("Idle GPUs", gpu_utilization_at_most=_percent(limits.idle_gpu), gpus_at_least=1),
    ]


def _percent(ratio: float) -> str:
    return f"{100 * ratio:g}%"


def _csv_address(page: PageRenderer, is_own: bool) -> str:
    """The address of the same list of the API, as a CSV file."""
    parameters = page.request.query_params.multi_items()
    kept = [
        (name, value) for name, value in parameters if name not in ("cursor", "limit", "columns")
    ]
    user = [("user", page.principal.user)] if is_own else []
    return f"{PREFIX}/jobs?{urlencode([*kept, *user, ('limit', MAX_PAGE_ROWS), ('format', 'csv')])}"
