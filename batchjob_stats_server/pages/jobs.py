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

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import day_of
from batchjob_stats_db.queries import jobs as queries
from batchjob_stats_db.queries import stats
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.gpus import utilizations
from batchjob_stats_db.queries.job_rows import numbered
from batchjob_stats_db.queries.paging import (
    MOST,
    SORTS,
    TooManyError,
    numbers,
    reads_only_its_rows,
)
from batchjob_stats_server.api import PREFIX, cursor
from batchjob_stats_server.api.answers import in_turn
from batchjob_stats_server.api.jobs import JobsQuery
from batchjob_stats_server.api.me import refuse_simple_json
from batchjob_stats_server.api.params import OneOrMore
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages import job_columns
from batchjob_stats_server.pages.job_columns import Column
from batchjob_stats_server.pages.rendering import job_table, links
from batchjob_stats_server.pages.rendering.frame import PageRenderer, Shown
from batchjob_stats_server.pages.rendering.job_table import (
    READ,
    READ_WAITING,
    ListColumn,
    ListLayout,
    TableFacts,
)
from batchjob_stats_server.services import Given, Services, live_columns, live_gpus

router = APIRouter(include_in_schema=False)

ENDED = tuple(state for state in JobState if not state.live)
_LIVE_ROWS = 50  # maximum running and waiting jobs shown in addition to those that ended


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
_TIMES = ("started_from", "started_before")
_FAILED = ("FAILED", "OUT_OF_MEMORY", "TIMEOUT", "NODE_FAIL")


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
    more: bool = False  # whether there are more
    next_page: str | None = None
    columns: Sequence[ListColumn] = ()
    body: Markup = Markup()


class LiveSection(NamedTuple):
    """Running or waiting jobs."""

    key: str
    title: str
    ask: Callable[..., list[RowMapping]]
    read: tuple[str, ...]
    alone: Mapping[str, Any]  # fields of the form that select only these jobs
    address: Mapping[str, str]  # the same as parameters of the page's address


_RUNNING = LiveSection(
    "running", "Running", queries.running, READ, {"running": True}, {"running": "true"}
)
_WAITING = LiveSection(
    "waiting", "Waiting", queries.pending, READ_WAITING, {"state": [JobState.PENDING]},
    {"state": JobState.PENDING.value},
)  # fmt: skip


class ActiveFilter(NamedTuple):
    """An active filter, and the address of the page without it."""

    name: str
    value: Any
    without: str


@router.get("/", dependencies=[Depends(refuse_simple_json)])
async def my_jobs(
    services: Given, page: Shown, access: Caller, which: Annotated[JobsForm, Query()]
) -> Response:
    """The caller's own jobs."""
    own = which.model_copy(update={"user": page.known.user})
    return await _answer(services, page, access, own, mine=True)


@router.get("/jobs")
async def all_jobs(
    services: Given, page: Shown, access: Caller, which: Annotated[JobsForm, Query()]
) -> Response:
    """All jobs that the caller may see."""
    return await _answer(services, page, access, which, mine=False)


async def _answer(
    services: Services, page: PageRenderer, access: Access, which: JobsForm, *, mine: bool
) -> Response:
    def work() -> Response:
        return _show(services, page, access, which, mine)

    costly = not reads_only_its_rows(access, which.filter(), which.order())
    return await in_turn(services, page.known, work, costly=costly)


def _show(
    services: Services, page: PageRenderer, access: Access, which: JobsForm, mine: bool
) -> Response:
    if which.columns:
        answer = RedirectResponse(page.address(columns=None), 303)
        job_columns.keep(page.request, answer, which.columns)
        return answer
    columns = job_columns.chosen(page.request)
    with services.reader.connect() as db:
        sections = _sections(services, db, page, access, which)
        rows = [row for section in sections for row in section.rows]
        sparks = page.frame.sparks.of(services, db, access, rows, job_columns.lines(columns))
        held = [row["id"] for row in rows if row["allocated_gpus"]]
        gpus = {**utilizations(db, held), **live_gpus(services, rows)}
        clusters = list(dict.fromkeys(row["name"] for row in stats.clusters(db)))
    audit.seen(page.known, "jobs", rows)
    several_users = not mine and len({row["username"] for row in rows}) != 1
    facts = TableFacts(page.now, gpus, sparks)
    return page.show(
        "jobs.html", mine=mine, which=which, clusters=clusters,
        sections=[_table(each, facts, columns, several_users, len(clusters) > 1)
                  for each in sections],
        columns=columns, titles=job_columns.TITLES, presets=_presets(page), csv=_csv(page, mine),
        asked=_asked(page, which, mine), states=list(JobState), filters=FILTERS, times=_TIMES,
        first=which.cursor is None, several_users=several_users,
    )  # fmt: skip


def _table(
    section: JobsSection, facts: TableFacts, chosen: frozenset[Column], several_users: bool,
    several_clusters: bool,
) -> JobsSection:  # fmt: skip
    """The section with its rendered table."""
    waits = section.key == "waiting"
    held = "requested_gpus" if waits else "allocated_gpus"
    gpus = any(row[held] for row in section.rows)
    lines = facts.sparks is not None
    layout = ListLayout(chosen, waits, gpus, several_users, several_clusters, lines)
    shown = job_table.columns(layout)
    return section._replace(columns=shown, body=job_table.body(section.rows, shown, facts))


def _sections(
    services: Services, db: Connection, page: PageRenderer, access: Access, which: JobsForm
) -> list[JobsSection]:
    """All sections; a following page has only the one that it continues."""
    chosen = which.filter()
    sections = []
    first = which.cursor is None
    if which.started and (first or which.running):
        section = _live(db, page, access, which, _RUNNING)
        sections.append(section._replace(rows=live_columns(services, db, section.rows)))
    if which.started and not which.running and (first or which.state == [JobState.PENDING]):
        sections.append(_live(db, page, access, which, _WAITING))
    ended = [state for state in which.state if not state.live] or (ENDED if not which.state else [])
    if ended and not which.running:
        wanted = chosen._replace(states=tuple(ended))
        section = _ended(db, page, access, which, wanted)
        sections.append(section._replace(rows=live_columns(services, db, section.rows)))
    shown = _without_repeats(sections)
    return [section for section in shown if section.rows or section.key == "ended"]


def _without_repeats(sections: Sequence[JobsSection]) -> list[JobsSection]:
    """A job that ends while the sections are read is shown in the last one that has it."""
    kept: list[JobsSection] = []
    later: set[int] = set()
    for section in reversed(sections):
        rows = [row for row in section.rows if row["id"] not in later]
        later |= {row["id"] for row in rows}
        kept.insert(0, section._replace(rows=rows))
    return kept


def _live(
    db: Connection, page: PageRenderer, access: Access, which: JobsForm, kind: LiveSection
) -> JobsSection:
    """The newest, with a link to a list of all of them."""
    alone = which.model_copy(update=kind.alone)
    after = cursor.decode(alone.question(), which.cursor, float) if which.cursor else None
    most = which.limit if after else min(which.limit, _LIVE_ROWS)
    rows = kind.ask(db, access, most + 1, which.filter(), kind.read, after)
    shown, following = rows[:most], None
    if len(rows) > most:
        word = cursor.encode(alone.question(), queries.place(shown[-1]))
        following = page.address(**kind.address, cursor=word)
    return JobsSection(kind.key, kind.title, shown, bool(following and not after), following)


def _ended(
    db: Connection, page: PageRenderer, access: Access, which: JobsForm, chosen: Filter
) -> JobsSection:
    question, order = which.question(), which.order()
    kind = str if isinstance(SORTS[order.key].type, sa.Text) else float
    after = cursor.decode(question, which.cursor, kind) if which.cursor else None
    try:
        ids, more = numbers(
            db, access, which.limit, chosen, after, order=order, started=which.started
        )
    except TooManyError as error:
        raise Problem(422, str(error)) from error
    following = page.address(cursor=cursor.encode(question, more)) if more else None
    title = "Ended" if which.started else "Ended without starting"
    return JobsSection("ended", title, numbered(db, ids, READ), next_page=following)


def _asked(page: PageRenderer, which: JobsForm, mine: bool) -> list[ActiveFilter]:
    names = [name for name in FILTERS if not (mine and name == "user")]
    asked = [
        ActiveFilter(
            name,
            getattr(which, name) if name in _TIMES else page.request.query_params.get(name),
            page.address(**{name: None, "cursor": None}),
        )
        for name in names
        if getattr(which, name) is not None
    ]
    if which.state:
        words = ", ".join(state.value for state in which.state)
        asked.append(ActiveFilter("state", words, page.address(state=None, cursor=None)))
    return asked


def _presets(page: PageRenderer) -> list[Preset]:
    here = page.request.url.path

    def preset(title: str, **query: object) -> Preset:
        return Preset(title, links.path(*here.strip("/").split("/"), **query))

    return [
        preset("All"),
        preset("Today", started_from=day_of(page.now)),
        preset("Failed", state=_FAILED),
        preset("Wasteful", cpu_efficiency_at_most="25%", elapsed_at_least="10m"),
        preset("With GPUs", gpus_at_least=1),
        preset("Idle GPUs", gpu_utilization_at_most="10%", gpus_at_least=1),
    ]


def _csv(page: PageRenderer, mine: bool) -> str:
    """The address of the same list of the API, as a CSV file."""
    given = page.request.query_params.multi_items()
    kept = [(name, value) for name, value in given if name not in ("cursor", "limit", "columns")]
    own = [("user", page.known.user)] if mine else []
    return f"{PREFIX}/jobs?{urlencode([*kept, *own, ('limit', MOST), ('format', 'csv')])}"
