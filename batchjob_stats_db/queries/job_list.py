"""Lists of jobs in any order, page by page, and rows of jobs by their ids.

A page is found in two steps: first the ids, along an index where one has the order, then the rows.
So the statement with all columns is always the same, and compiled once: with a hundred columns,
SQLAlchemy compiles a statement more slowly than SQLite runs it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, cached_by_access, visibility_terms, visible
from batchjob_stats_db.queries.efficiency import columns, statement_column, with_figures
from batchjob_stats_db.queries.filters import (
    Filter,
    cluster_names,
    index_conditions,
    needs_figures,
    row_conditions,
)

MAX_PAGE_ROWS = 1000  # maximum rows per page
MOST_READ = 100_000  # maximum rows read for one page
MOST_COUNTED = 1000  # jobs of a list, unless the exact number is asked for
_MOST_LOOKED_AT = 20_000  # maximum rows among which they are counted, if a filter has no index

_SORT_KEYS = (
    "start_time", "elapsed_seconds", "cpu_efficiency", "usage_memory_peak_bytes",
    "usage_energy_joules", "energy_used_joules", "cpu_unused_seconds", "gpu_unused_seconds",
    "jobid", "submit_time", "end_time", "wait_seconds", "time_limit_seconds", "time_efficiency",
    "priority", "username", "account", "partition", "qos", "state", "name",
    "allocated_cpus", "allocated_gpus", "allocated_nodes", "allocated_memory_bytes",
    "memory_efficiency", "usage_gpu_utilization_ratio", "usage_gpu_memory_peak_bytes",
    "usage_gpu_sm_active_ratio", "usage_gpu_tensor_active_ratio", "usage_gpu_dram_active_ratio",
    "usage_io_read_bytes", "usage_io_written_bytes", "usage_throttled_seconds",
    "usage_network_received_bytes", "usage_network_sent_bytes",
)  # fmt: skip
SORTS = {"user" if name == "username" else name: name for name in _SORT_KEYS}
"""Keys to sort jobs by, and the columns that they are of: the usual ones first."""

ColumnNames = tuple[str, ...]

COLUMN_TYPES = {str(column.name): column.type for column in columns()}
"""All columns of a job."""
COLUMN_NAMES: ColumnNames = tuple(COLUMN_TYPES)


class SortOrder(NamedTuple):
    """A sort key and direction; equal rows are ordered by id, in the same direction."""

    key: str = "start_time"
    descending: bool = True


class After(NamedTuple):
    """The end of a page: the value of its last job and the job; the next page follows it."""

    value: int | float | str | None
    id: int
    part: str = ""  # the part of the list, if it has several


class Page(NamedTuple):
    """How many jobs, after which one, and with which columns."""

    limit: int = 100
    after: After | None = None
    columns: ColumnNames = COLUMN_NAMES


class JobPage(NamedTuple):
    """Rows, and where the next page begins; None: this was the last page."""

    rows: list[RowMapping]
    more: After | None


class TooManyError(ValueError):
    """A query would have to read more jobs than it may; the text says what would help."""


ALL_JOBS, NEWEST_FIRST, FIRST_PAGE = Filter(), SortOrder(), Page()


def list_jobs(
    db: Connection,
    access: Access,
    which: Filter = ALL_JOBS,
    order: SortOrder = NEWEST_FIRST,
    page: Page = FIRST_PAGE,
) -> JobPage:
    """A page of the jobs that may be seen.

    By start time, waiting jobs come first, then started ones, then those that ended without
    starting. Jobs without the value come last, except that everybody's jobs by `end_time` are the
    ended ones only. Raises TooManyError where no index has the order.
    """
    found, more = find_page(db, access, which, order, page)
    return JobPage(rows_by_ids(db, [each.id for each in found], page.columns), more)


class FoundJob(NamedTuple):
    """A job of a page, and the array whose task it may be."""

    id: int
    cluster: str
    array_jobid: str
    username: str
    tool: str


def find_page(
    db: Connection, access: Access, which: Filter, order: SortOrder, page: Page
) -> tuple[list[FoundJob], After | None]:
    """The jobs of a page without their columns; see list_jobs."""
    parts = _indexed_parts(access, which, order.key)
    if parts:
        return _walk(db, access, which, parts, order.descending, page)
    return _sort(db, access, which, order, page)


def count_jobs(
    db: Connection, access: Access, which: Filter, *, exactly: bool = False
) -> tuple[int, bool]:
    """How many jobs match, and whether these are all; at most MOST_COUNTED unless exactly."""
    clusters = tuple(cluster_names(db, which.cluster))
    matching, found, looked_at = _counts(access, which, clusters, exactly=exactly)
    number = db.scalar(matching) or 0
    if exactly or (number <= MOST_COUNTED and not (looked_at and db.scalar(found) == looked_at)):
        return number, True
    return min(number, MOST_COUNTED), False


@cached_by_access
def _counts(
    access: Access, which: Filter, clusters: Sequence[str], *, exactly: bool
) -> tuple[sa.Select[Any], sa.Select[Any], int]:
    """Of the matching jobs, and of those that are looked at; and at most how many these are."""
    filters, most = row_conditions(which), None if exactly else MOST_COUNTED + 1
    looked_at = _MOST_LOOKED_AT if filters and not exactly else 0
    source, candidates = _candidates(access, which, clusters)
    tables = with_figures(source) if needs_figures(which) else source
    fits = sa.and_(sa.true(), *filters).label("fits")
    found, jobs = (
        sa.select(column).select_from(tables).where(*candidates).limit(looked_at or most)
        for column in (_job.id, fits)
    )
    fitting = jobs.subquery()
    matching = sa.select(fitting).where(fitting.c.fits).limit(most)
    return _count(matching), _count(found), looked_at


def _count(rows: sa.Select[Any]) -> sa.Select[Any]:
    return sa.select(sa.func.count()).select_from(rows.subquery())


# Rows by ids


@functools.cache
def id_condition(
    dialect: str, column: sa.Column[int]
) -> tuple[ColumnElement[bool], Callable[[Sequence[int]], object]]:
    """The condition that the column is one of `ids`, a parameter, and what converts ids to it.

    The statement is the same, however many ids there are.
    """
    if dialect == "postgresql":
        numbers = sa.bindparam("ids", type_=sa.ARRAY(sa.BigInteger))
        return column == sa.any_(numbers), list
    each = sa.func.json_each(sa.bindparam("ids", type_=sa.Text)).table_valued("value")
    return column.in_(sa.select(each.c.value)), str


@functools.lru_cache(256)
def _rows_statement(names: ColumnNames, condition: ColumnElement[bool]) -> sa.Select[Any]:
    shown = [statement_column(name) for name in COLUMN_NAMES if name in {"id", *names}]
    is_of_job = all(isinstance(column, sa.Column) for column in shown)
    return (
        sa.select(*shown).select_from(schema.job if is_of_job else with_figures()).where(condition)
    )


def rows_by_ids(
    db: Connection, ids: Sequence[int], names: ColumnNames = COLUMN_NAMES
) -> list[RowMapping]:
    """The jobs with these ids, in this order, with the columns of these names.

    The caller must have checked that they may be seen.
    """
    if not ids:
        return []
    condition, parameter = id_condition(db.dialect.name, schema.job.c.id)
    found = db.execute(_rows_statement(names, condition), {"ids": parameter(ids)})
    keys = tuple(found.keys())
    # Dictionaries, since lookups in a RowMapping are several times slower.
    rows = [dict(zip(keys, row, strict=True)) for row in found.all()]
    by_id = {row["id"]: row for row in rows}
    return cast(list[RowMapping], [by_id[job_id] for job_id in ids if job_id in by_id])


# Along an index: each page is as fast as the first. It reads its own rows, and those that a filter
# without an index skips, up to a maximum; a page that was cut short continues like a full one.

_MOST_RANGES = 100  # in one statement
_Position = tuple[Any, ...]  # time, id, and the rest of a FoundJob


class _ListPart(NamedTuple):
    """Jobs of a list in the order of an index whose last columns are a time and the job's id."""

    name: str
    order: tuple[ColumnElement[Any], ColumnElement[Any]]
    conditions: tuple[ColumnElement[bool], ...] = ()
    has_time: bool = True  # False: the jobs without this time
    is_queue: bool = False  # as short as the queue: it may be read from end to end

    def after(self, position: _Position) -> After:
        return After(position[0], position[1], self.name)

    def compared(self, position: Sequence[Any]) -> ColumnElement[Any]:
        """The time and the id; for jobs without a time the id alone, as NULLs are incomparable."""
        return sa.tuple_(*(position[:2] if self.has_time else position[1:2]))


_job, _share = schema.job.c, schema.job_node.c
_IDENTITY = tuple(_job[name] for name in FoundJob._fields[1:])
_is_pending = (_job.end_time.is_(None), _job.state == JobState.PENDING.value)
# As a sum, which no index has: the ended jobs without a start time may be many.
_has_not_started = (_job.start_time + sa.literal_column("0")).is_(None)
_WAITING = _ListPart(
    "waiting", (_job.submit_time, _job.id), (*_is_pending, _has_not_started), is_queue=True
)
_LIVE = _ListPart("", (sa.func.coalesce(_job.start_time, _job.submit_time), _job.id), is_queue=True)
_ENDED = _ListPart("", (_job.end_time, _job.id))
_STARTED, _NOT_STARTED = (
    _ListPart(name, (_job.start_time, _job.id), has_time=has_time)
    for name, has_time in (("started", True), ("not started", False))
)
_NEVER_STARTED = _NOT_STARTED._replace(
    name="never started", conditions=(sa.not_(sa.and_(*_is_pending)),)
)
# A node's jobs are one range in the index of job_node.
_STARTED_ON_NODE, _NOT_STARTED_ON_NODE = (
    part._replace(order=(_share.start_time, _share.job_id)) for part in (_STARTED, _NOT_STARTED)
)
_NODE_JOBS = schema.job_node.join(schema.job, _share.job_id == _job.id)

_TIME_PARAMETERS: Mapping[str, Any] = {
    name: sa.bindparam(name, type_=sa.BigInteger)
    for name in ("started_from", "started_before", "ended_from", "ended_before")
}
"""Parameters for a filter's times, which differ in each request: the statement stays the same."""


def _indexed_parts(access: Access, which: Filter, key: str) -> Sequence[_ListPart]:
    """The parts of the list, one after the other; none if no index has the order."""
    if key == "end_time":
        of_everybody = access.everything and (which.user, which.account, which.node) == (None,) * 3
        return (_ENDED,) if of_everybody and which.started is not False else ()
    if key != "start_time":
        return ()
    if which.running:
        return (_LIVE,)
    started, not_started = (
        (_STARTED, _NOT_STARTED) if which.node is None else (_STARTED_ON_NODE, _NOT_STARTED_ON_NODE)
    )
    if which.started is not None:
        return (started,) if which.started else (not_started,)
    if not _can_lack_start(which):
        return (started,)
    is_queue = which.states == (JobState.PENDING.value,)
    return (_WAITING,) if is_queue else (_WAITING, started, _NEVER_STARTED)


def _can_lack_start(which: Filter) -> bool:
    """Whether jobs without a start time can match."""
    times = (which.started_from, which.started_before, which.node)
    live = not which.states or JobState.PENDING.value in which.states
    ended = any(not JobState(state).is_live for state in which.states)
    return times == (None,) * 3 and (live or ended)


def _walk(
    db: Connection, access: Access, which: Filter, parts: Sequence[_ListPart], descending: bool,
    page: Page,
) -> tuple[list[FoundJob], After | None]:  # fmt: skip
    """Read the list part by part; a page may extend over several parts."""
    limit, after = min(page.limit, MAX_PAGE_ROWS), page.after
    clusters = tuple(cluster_names(db, which.cluster))
    names = [part.name for part in parts]
    if after and after.part in names:
        parts = parts[names.index(after.part) :]
    else:
        after = None
    found: dict[int, FoundJob] = {}
    for part in parts:
        rows, end = _walk_part(
            db, access, which, clusters, part, descending, limit - len(found), after
        )
        # A job that has just started or ended was still waiting when the part before was read.
        for row in rows:
            found.setdefault(row[1], FoundJob(*row[1:]))
        if end is None and len(found) == limit and part is not parts[-1]:
            end = part.after(rows[-1])
        if end is not None:
            return list(found.values()), end
        after = None
    return list(found.values()), None


def _walk_part(
    db: Connection, access: Access, which: Filter, clusters: Sequence[str], part: _ListPart,
    descending: bool, limit: int, after: After | None,
) -> tuple[list[_Position], After | None]:  # fmt: skip
    """Matching jobs by their positions, and where reading ended; None: at the end of the part."""
    times = {name: at for name in _TIME_PARAMETERS if (at := getattr(which, name)) is not None}
    which = which._replace(**{name: _TIME_PARAMETERS[name] for name in times})
    skips_rows = not part.is_queue and row_conditions(which)
    rows: list[_Position] = []

    def read(after: After | None, **more: Any) -> list[_Position]:
        """From all ranges; no database finds the newest of several ranges at once."""
        queries = _queries(access, which, clusters, part, descending, after, **more)
        found = {tuple(row) for query in queries for row in db.execute(query, times).all()}
        return sorted(found, reverse=descending)

    # Few rows are scanned at first: matching ones are usually near, and walking an index as far as
    # permitted costs more than reading a page of frequent jobs.
    most_read = [MOST_READ * percent // 100 for percent in (2, 8, 30, 60)]
    for scan_length in (min(2 * limit + 100, most_read[0]), *most_read):
        # The nearest position this many rows on in any range; None: all ranges end before.
        end = next(iter(read(after, offset=scan_length)), None) if skips_rows else None
        rows += read(after, end=end, most=limit + 1 - len(rows))
        if len(rows) > limit:
            return rows[:limit], part.after(rows[limit - 1])
        if end is None:
            return rows, None
        after = part.after(end)
    return rows, after


@cached_by_access
def _queries(
    access: Access, which: Filter, clusters: Sequence[str], part: _ListPart, descending: bool,
    after: After | None, *, end: _Position | None = None, most: int = 1, offset: int | None = None,
) -> Sequence[sa.CompoundSelect[Any]]:  # fmt: skip
    """Queries of all ranges of the index, for matching positions after `after`, up to `end`.

    With `offset`, for any position this many rows after `after`.
    """
    place, time = part.compared(part.order), part.order[0]
    conditions: list[ColumnElement[bool]] = [time.is_not(None) if part.has_time else time.is_(None)]
    if after is not None:
        last = part.compared(after)
        conditions.append(place < last if descending else place > last)
    tables: Any = schema.job if which.node is None else _NODE_JOBS
    if offset is None:
        matching = row_conditions(which)
        conditions += [*part.conditions, *matching]
        if end is not None:
            last = part.compared(end)
            conditions.append(place >= last if descending else place <= last)
        if matching:
            tables = tables.outerjoin(schema.job_usage, schema.job_usage.c.job_id == _job.id)
    query = (
        sa.select(*part.order, *(_IDENTITY if offset is None else ()))
        .select_from(tables)
        .where(*conditions)
        .order_by(*(column.desc() if descending else column.asc() for column in part.order))
        .limit(most)
        .offset(offset)
    )
    start = _job.start_time if which.node is None else _share.start_time
    ranges = [
        query.where(term, *index_conditions(which._replace(cluster=cluster), start)).subquery()
        for cluster in clusters
        for term in visibility_terms(access, cluster=cluster)
    ]
    return [
        sa.union_all(*map(sa.select, ranges[first : first + _MOST_RANGES]))
        for first in range(0, len(ranges), _MOST_RANGES)
    ]


def reads_only_its_rows(access: Access, which: Filter, order: SortOrder) -> bool:
    """Whether a page consists of a few ranges of an index, without skipped rows."""
    filtered = [name for name in (which.user, which.account, which.node) if name is not None]
    alone = len(access.users) == 1 and not access.accounts and not access.clusters
    own = [access.users[0].user] if alone else []
    is_one_range = len(filtered) <= 1 if access.everything else filtered in ([], own)
    by_end = (which.ended_from, which.ended_before) != (None, None)
    skips_rows = which.running or by_end or row_conditions(which)
    return order.key == "start_time" and is_one_range and not skips_rows and access.is_small()


# Without an index: all matching jobs are read and sorted, up to a maximum.


def _sort(
    db: Connection, access: Access, which: Filter, order: SortOrder, page: Page
) -> tuple[list[FoundJob], After | None]:
    clusters = cluster_names(db, which.cluster)
    source, candidates = _candidates(access, which, clusters)
    check_row_limit(db, source, candidates, f"jobs by {order.key}")
    column, limit = statement_column(order.key), min(page.limit, MAX_PAGE_ROWS)
    key = getattr(column, "element", column)  # without its label
    query = (
        sa.select(key.label("sorted_by"), _job.id, *_IDENTITY)
        .select_from(with_figures(source))
        .where(*candidates, *row_conditions(which))
        .where(*_after_conditions(key, page.after, order.descending))
        .order_by(
            key.is_(None),
            *(column.desc() if order.descending else column for column in (key, _job.id)),
        )
        .limit(limit + 1)
    )
    found = db.execute(query).all()
    more = After(*found[limit - 1][:2]) if len(found) > limit else None
    return [FoundJob(*row[1:]) for row in found[:limit]], more


def _candidates(
    access: Access, which: Filter, clusters: Sequence[str]
) -> tuple[Any, list[ColumnElement[bool]]]:
    """The tables of the jobs that may be seen, and conditions that indexes answer."""
    source: Any = schema.job if which.node is None else _NODE_JOBS
    start = _job.start_time if which.node is None else _share.start_time
    here = _job.cluster.in_(clusters)
    return source, [here, visible(access), *index_conditions(which, start)]


def check_row_limit(
    db: Connection, source: Any, candidates: Sequence[ColumnElement[bool]], what: str
) -> None:
    some = sa.select(_job.id).select_from(source).where(*candidates).limit(MOST_READ + 1)
    if (db.scalar(_count(some)) or 0) > MOST_READ:
        raise TooManyError(
            f"for {what} more than {MOST_READ} jobs would have to be read; "
            "narrow the query by start or end time, user, account, node or running"
        )


def _after_conditions(
    key: ColumnElement[Any], after: After | None, descending: bool
) -> list[ColumnElement[bool]]:
    """Rows without the value come last; among equal ones, the id decides."""
    if after is None:
        return []
    number = _job.id < after.id if descending else _job.id > after.id
    if after.value is None:
        return [key.is_(None) & number]
    further = key < after.value if descending else key > after.value
    return [further | ((key == after.value) & number) | key.is_(None)]
