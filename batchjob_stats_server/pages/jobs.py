"""Lists of jobs: running ones first, then waiting ones, then ended ones."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from sqlalchemy.engine import Connection

from batchjob.judgements import FAILED_STATES, thresholds
from batchjob.schedulers.states import JobState
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import arrays
from batchjob_stats_db.queries.filters import Filter, cluster_names
from batchjob_stats_db.queries.job_list import (
    Page,
    SortOrder,
    count_jobs,
    list_jobs,
    reads_only_its_rows,
)
from batchjob_stats_db.queries.jobs import gpu_utilizations
from batchjob_stats_server.api.answers import TurnRoute, run_in_thread
from batchjob_stats_server.api.jobs import JobsQuery
from batchjob_stats_server.api.params import PREFIX, InQuery, OneOrMore, QueryParams
from batchjob_stats_server.auth.browser_session import cookie_name
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.pages.rendering import job_table, links, template_filters
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage
from batchjob_stats_server.pages.rendering.job_table import (
    COLUMN_TITLES,
    DEFAULT_COLUMNS,
    LISTED_COLUMNS,
    LISTED_WAITING_COLUMNS,
    TableContext,
)

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

ENDED_STATES = tuple(state for state in JobState if not state.is_live)
_MAX_EMBEDDED_ROWS = 10  # of each state
_MAX_LIVE_ROWS = 50  # maximum running and waiting jobs shown in addition to those that ended


_FILTERS: Mapping[str, tuple[str, str]] = {
    "user": ("User", ""),
    "account": ("Account", ""),
    "cluster": ("Cluster", ""),
    "partition": ("Partition", ""),
    "qos": ("QOS", ""),
    "name_contains": ("Name contains", ""),
    "name": ("Name is", ""),
    "node": ("Node", ""),
    "array_jobid": ("Array", ""),
    "started_from": ("Started from", ""),
    "started_before": ("Started before", ""),
    "elapsed_at_least": ("Elapsed, at least", "2h"),
    "elapsed_at_most": ("Elapsed, at most", "1h30m"),
    "nodes_at_least": ("Nodes, at least", "2"),
    "nodes_at_most": ("Nodes, at most", ""),
    "gpus_at_least": ("GPUs, at least", "1"),
    "gpus_at_most": ("GPUs, at most", ""),
    "memory_at_least": ("Peak memory, at least", "16G"),
    "memory_at_most": ("Peak memory, at most", "500M"),
    "energy_at_least": ("Energy, at least", "1.5 kWh"),
    "energy_at_most": ("Energy, at most", ""),
    "cpu_efficiency_at_most": ("CPU used, at most", "25%"),
    "memory_efficiency_at_most": ("Memory used, at most", "20%"),
    "gpu_utilization_at_most": ("GPU used, at most", "10%"),
}
"""The fields of the form, in order: each with its label, and an example of its value."""

_TIME_FIELDS = ("started_from", "started_before")
_COLUMNS_COOKIE = "batchjob_columns"
_COOKIE_AGE_SECONDS = 365 * 86400
_SAME_OF_TASKS = {
    "user", "account", "cluster", "partition", "qos", "name", "name_contains", "limit", "exact"
}  # fmt: skip
"""With these parameters only, an array is one row of the list: other filters select its tasks."""

ColumnName = Annotated[str, Field(pattern=f"^({'|'.join(COLUMN_TITLES)})$")]


class JobsForm(JobsQuery):
    """The filters of the API as a form, with a choice of columns."""

    limit: int = Field(50, ge=1, le=200)
    started: bool = True  # waiting jobs have their own section
    columns: Annotated[list[ColumnName], OneOrMore] = Field([])
    exact: bool = False  # whether to count all jobs, however many


JobsSection = dict[str, Any]
"""Jobs in the same state: what its part of the page shows."""


@router.get("/mine")
async def my_jobs(page: RequestPage, form: InQuery[JobsForm]) -> Response:
    """The caller's own jobs."""
    own = form.model_copy(update={"user": page.principal.user})
    return await _list_response(page, own, is_own=True)


@router.get("/jobs")
async def all_jobs(page: RequestPage, form: InQuery[JobsForm]) -> Response:
    """All jobs that the caller may see."""
    return await _list_response(page, form, is_own=False)


@router.get("/embed/jobs")
def embedded_jobs(page: RequestPage, _query: InQuery[QueryParams]) -> Response:
    """A small page for frames in other sites' pages: running, waiting, and last ended own jobs."""
    access, own_filter = page.access, Filter(user=page.principal.user)
    with page.services.reader.connect() as db:
        rows = [
            row
            for job_filter in (
                own_filter._replace(running=True),
                own_filter._replace(states=(JobState.PENDING,)),
                own_filter._replace(states=ENDED_STATES),
            )
            for row in list_jobs(
                db, access, job_filter, page=Page(_MAX_EMBEDDED_ROWS, columns=LISTED_COLUMNS)
            ).rows
        ]
    return page.render("embed_jobs.html", rows=rows)


async def _list_response(page: PageRenderer, form: JobsForm, *, is_own: bool) -> Response:
    if form.model_dump(exclude_defaults=True).keys() <= _SAME_OF_TASKS:
        form = form.model_copy(update={"arrays_once": True})
    costly = not reads_only_its_rows(page.access, form.filter(), form.order())
    costly |= form.exact
    return await run_in_thread(page, partial(_render_list, page, form, is_own), costly=costly)


def _render_list(page: PageRenderer, form: JobsForm, is_own: bool) -> Response:
    if form.columns:
        return _store_choice(page, form.columns)
    services, columns = page.services, _chosen_columns(page.request)
    with services.reader.connect() as db:
        sections = _query_sections(db, page, form)
        whole = Filter(cluster=form.cluster, array_jobid=form.array_jobid, arrays_once=True)
        found = arrays.list_jobs(db, page.access, whole) if form.array_jobid else None
        rows = [row for section in sections for row in section["rows"]]
        gpus = gpu_utilizations(db, [row["id"] for row in rows if row["gpus_held"]])
        clusters = cluster_names(db)
    log_jobs_seen(page.principal, "jobs", rows)
    several_users = not is_own and len({row["username"] for row in rows}) != 1
    context = TableContext(page.now, gpus)
    sort = form.order().key if "sort" in form.model_fields_set else ""
    shown = _table_columns(sections, columns, sort, several_users, len(clusters) > 1)
    for each in sections:
        each["body"] = job_table.body(each["rows"], shown, context, each["key"] == "waiting")
    return page.render(
        "jobs.html", is_own=is_own, form=form, clusters=clusters,
        arrays=found.rows if found else (),
        sections=sections, table_columns=shown,
        columns=columns, titles=COLUMN_TITLES, presets=_presets(page),
        active_filters=_active_filters(page, form, is_own), csv_address=_csv_address(page, is_own),
        states=list(JobState), filters=_FILTERS, time_fields=_TIME_FIELDS,
        is_first_page=form.cursor is None, several_users=several_users,
    )  # fmt: skip


def _chosen_columns(request: Request) -> Collection[str]:
    """The columns chosen in this browser; unknown names are ignored.

    They are stored in a cookie, so that the choice needs no account; it is not confidential.
    """
    names = request.cookies.get(_COLUMNS_COOKIE, "").split(".")
    return COLUMN_TITLES.keys() & set(names) or DEFAULT_COLUMNS


def _store_choice(page: PageRenderer, columns: Sequence[str]) -> Response:
    answer = RedirectResponse(page.address(columns=None), 303)
    answer.set_cookie(
        _COLUMNS_COOKIE, ".".join(columns), max_age=_COOKIE_AGE_SECONDS, httponly=True,
        samesite="lax", secure=cookie_name(page.request).startswith("__Host-"),
    )  # fmt: skip
    return answer


def _table_columns(
    sections: Sequence[JobsSection], chosen: Collection[str], sort: str, several_users: bool,
    several_clusters: bool,
) -> list[job_table.ListColumn]:  # fmt: skip
    """The same for all sections, so that the eye can go down."""
    rows = [row for section in sections for row in section["rows"]]
    return job_table.columns(
        chosen,
        sort,
        has_gpus=any(row["allocated_gpus"] or row["requested_gpus"] for row in rows),
        has_waiting=any(section["key"] == "waiting" for section in sections),
        several_users=several_users,
        several_clusters=several_clusters,
    )


def _query_sections(db: Connection, page: PageRenderer, form: JobsForm) -> list[JobsSection]:
    """All sections; a following page has only the one that it continues."""
    sections = []
    is_first_page = form.cursor is None
    if form.started and (is_first_page or form.running):
        running = form.model_copy(update={"running": True})
        sections.append(_section(db, page, running, "running", "Running", {"running": "true"}))
    may_wait = form.started and not form.running
    may_wait &= JobState.PENDING in form.state or not form.state
    if may_wait and (is_first_page or form.state == [JobState.PENDING]):
        waiting, selected = form.model_copy(update={"state": [JobState.PENDING]}), "PENDING"
        sections.append(_section(db, page, waiting, "waiting", "Waiting", {"state": selected}))
    ended_states = [state for state in form.state if not state.is_live] or (
        ENDED_STATES if not form.state else []
    )
    if ended_states and not form.running:
        title = "Ended" if form.started else "Ended without starting"
        sections.append(_section(db, page, form, "ended", title, {}, tuple(ended_states)))
    unique_sections = _without_repeats(sections)
    return [section for section in unique_sections if section["rows"] or section["key"] == "ended"]


def _section(
    db: Connection, page: PageRenderer, form: JobsForm, key: str, title: str,
    selected: Mapping[str, str], ended_states: tuple[JobState, ...] = (),
) -> JobsSection:  # fmt: skip
    """A page of jobs; of running and waiting ones at first only the newest.

    `selected`: parameters of the address of a list of these jobs alone.
    """
    if ended_states:
        job_filter, order = form.filter()._replace(states=ended_states), form.order()
        limit, after = form.limit, form.after(form.order())
    else:
        job_filter, order = form.filter()._replace(started=None), SortOrder()
        after = form.after(order)
        limit = form.limit if after else min(form.limit, _MAX_LIVE_ROWS)
    columns = LISTED_WAITING_COLUMNS if key == "waiting" else LISTED_COLUMNS
    rows, more = arrays.list_jobs(db, page.access, job_filter, order, Page(limit, after, columns))
    if form.arrays_once:
        selected = {**selected, "arrays_once": "true"}
    next_page = page.address(**selected, cursor=form.cursor_after(more)) if more else None
    count, is_all = template_filters.number(len(rows)), True
    if more and not after:
        jobs = job_filter._replace(arrays_once=False)
        number, is_all = count_jobs(db, page.access, jobs, exactly=form.exact)
        count += f" of {'' if is_all else 'more than '}{template_filters.number(number)}"
    return {
        "key": key, "title": title, "rows": rows, "next_page": next_page,
        "count": count, "is_cut": not is_all,
    }  # fmt: skip


def _without_repeats(sections: Sequence[JobsSection]) -> list[JobsSection]:
    """Keep a job that ended while the sections were queried only in the last of them."""
    unique_sections: list[JobsSection] = []
    later_ids: set[int] = set()
    for section in reversed(sections):
        rows = [row for row in section["rows"] if row["id"] not in later_ids]
        later_ids |= {row["id"] for row in rows}
        unique_sections.insert(0, {**section, "rows": rows})
    return unique_sections


def _active_filters(page: PageRenderer, form: JobsForm, is_own: bool) -> list[tuple[str, Any, str]]:
    """Each active filter with its value, and the address of the page without it."""
    field_names = [name for name in _FILTERS if not (is_own and name == "user")]
    filters = [
        (
            name,
            getattr(form, name) if name in _TIME_FIELDS else page.request.query_params.get(name),
            page.address(**{name: None, "cursor": None}),
        )
        for name in field_names
        if getattr(form, name) is not None
    ]
    if form.state:
        words = ", ".join(state.value for state in form.state)
        filters.append(("state", words, page.address(state=None, cursor=None)))
    return filters


def _presets(page: PageRenderer) -> list[tuple[str, str]]:
    """Titles and addresses of lists that are often needed."""
    limits, here = thresholds(), page.request.url.path.strip("/").split("/")
    low, idle = f"{100 * limits.low_use:g}%", f"{100 * limits.idle_gpu:g}%"
    held = f"{limits.idle_after:g}s"
    queries: Mapping[str, Mapping[str, object]] = {
        "All": {},
        "Today": {"started_from": day_of(page.now)},
        "Failed": {"state": FAILED_STATES},
        "Wasteful": {"cpu_efficiency_at_most": low, "elapsed_at_least": held},
        "With GPUs": {"gpus_at_least": 1},
        "Idle GPUs": {"gpu_utilization_at_most": idle, "gpus_at_least": 1},
        "Unused GPU time, 7 days": {
            "started_from": day_of(page.now) - 6 * DAY,
            "sort": "-gpu_unused_seconds",
            "gpus_at_least": 1,
        },
    }
    return [(title, links.path(*here, **query)) for title, query in queries.items()]


def _csv_address(page: PageRenderer, is_own: bool) -> str:
    parameters = page.request.query_params.multi_items()
    kept = [
        (name, value)
        for name, value in parameters
        if name not in ("cursor", "limit", "columns", "sort", "exact", "arrays_once")
    ]
    user = [("user", page.principal.user)] if is_own else []
    return f"{PREFIX}/jobs?{urlencode([*kept, *user, ('all', 'true'), ('format', 'csv')])}"
