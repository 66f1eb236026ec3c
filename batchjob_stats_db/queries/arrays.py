"""Arrays and het jobs, each as one row with its jobs' states and total usage."""

import functools
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.judgements import RUNNING_STATES
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, cached_by_access, visible
from batchjob_stats_db.database.engine import read_if_changed
from batchjob_stats_db.queries import efficiency, job_list
from batchjob_stats_db.queries.filters import (
    Filter,
    clusters_to_query,
    index_conditions,
    row_conditions,
)
from batchjob_stats_db.queries.job_list import After, JobPage, Page, SortOrder

MAX_PAGE_GROUPS = 100  # maximum groups per page

_job, _usage = schema.job.c, schema.job_usage.c


class JobGroupKind(StrEnum):
    """How jobs are grouped."""

    ARRAY = "array"
    HET = "het"


_GROUP_ID = {JobGroupKind.ARRAY: _job.array_jobid, JobGroupKind.HET: _job.het_jobid}


def groups(
    db: Connection,
    access: Access,
    kind: JobGroupKind,
    limit: int,
    which: Filter,
    after: After | None = None,
) -> JobPage:
    """Groups with a job that matches `which`, by their latest start, with all their jobs.

    Raises TooManyError.
    """
    visible_here = (_job.cluster.in_(clusters_to_query(db, which.cluster)), visible(access))
    started = (_job.start_time.is_not(None), *index_conditions(which, _job.start_time))
    candidates = [*visible_here, *started]
    job_list.check_row_limit(db, schema.job, candidates, "arrays and het jobs")
    found = _latest_groups(db, kind, limit, [*candidates, *row_conditions(which)], after)
    page = _within_limit(db, kind, found[:limit], job_list.MOST_READ) or found[:1]
    has_more = len(page) < len(found)
    more = After(page[-1].last_start, page[-1].last_id) if has_more else None
    rows = {
        (row["cluster"], row["jobid"], row["username"]): row
        for row in _sum_groups(db, access, kind, page)
    }
    return JobPage([rows[each[:3]] for each in page if each[:3] in rows], more)


Array = tuple[str, str, str]
"""Its cluster, id and user."""

MOST_TASKS = 20_000  # tasks of the arrays of a page; those of further arrays are listed one by one
_MOST_READS = 20  # of a page of arrays, whose tasks fill a list: a page may be shorter


def list_jobs(
    db: Connection, access: Access, which: Filter, order: SortOrder = job_list.NEWEST_FIRST,
    page: Page = job_list.FIRST_PAGE,
) -> JobPage:  # fmt: skip
    """See job_list.list_jobs; with `arrays_once`, one row has the sums and states of an array.

    It is at the place of the task that stands for the array. The others are skipped by reading on
    without their array: to find for each task whether it is the one would read the array each time.
    """
    if not which.arrays_once:
        return job_list.list_jobs(db, access, which, order, page)
    ids: list[int] = []
    tasks: dict[Array, int | None] = {}  # the id of the task that stands for the array
    more = page.after
    for _ in range(_MOST_READS):
        rest = Page(page.limit - len(ids), more, _ARRAY_COLUMNS)
        left_out = tuple(array for array, task in tasks.items() if task is not None)
        rows, more = job_list.list_jobs(
            db, access, which._replace(arrays_left_out=left_out), order, rest
        )
        new = {_array_of(row) for row in rows if _is_task(row)} - tasks.keys()
        tasks |= _standing_tasks(db, access, new)
        for row in rows:
            task = tasks[_array_of(row)] if _is_task(row) else None
            if task in (None, row["id"]):
                ids.append(row["id"])
        if more is None or len(ids) == page.limit:
            break
    shown = job_list.rows_by_ids(db, ids, (*page.columns, *_ARRAY_COLUMNS))
    found = [_array_of(row) for row in shown if _is_task(row) and tasks[_array_of(row)]]
    sums = {
        (row["cluster"], row["jobid"], row["username"]): row
        for row in _sum_groups(db, access, JobGroupKind.ARRAY, found)
    }
    return JobPage([_array_row(row, sums.get(_array_of(row))) for row in shown], more)


_ARRAY_COLUMNS = ("cluster", "array_jobid", "username", "tool", "state", "array_index")


def _array_of(row: RowMapping) -> Array:
    return row["cluster"], row["array_jobid"], row["username"]


def _is_task(row: RowMapping) -> bool:
    return bool(row["array_jobid"]) and not row["tool"]  # workflows of tracked work are no arrays


def _standing_tasks(db: Connection, access: Access, arrays: set[Array]) -> dict[Array, int | None]:
    """The task that stands for each array: running before waiting before ended, then the latest.

    None for arrays that are too large.
    """
    tasks: dict[Array, int | None] = dict.fromkeys(arrays)
    found = _within_limit(db, JobGroupKind.ARRAY, sorted(arrays), MOST_TASKS)
    for cluster, group, user, task in _read_groups(db, _standing(access), found):
        if (cluster, group, user) in tasks:
            tasks[cluster, group, user] = task
    return tasks


@cached_by_access
def _standing(access: Access) -> sa.Select[Any]:
    state = sa.case((_job.state.in_(RUNNING_STATES), 2), (_job.state == "PENDING", 1), else_=0)
    at = sa.func.coalesce(_job.start_time, _job.submit_time)
    keys = (_job.cluster, _job.array_jobid, _job.username)
    order = (state.desc(), at.desc(), _job.id.desc())
    first = sa.func.first_value(_job.id).over(partition_by=keys, order_by=order)
    query = sa.select(*keys, first.label("id")).distinct()
    return query.where(_members(JobGroupKind.ARRAY), _job.tool == "", visible(access))


def _array_row(row: RowMapping, sums: RowMapping | None) -> Any:
    """The row of an array instead of that of a task, whose own figures are left out."""
    if sums is None or sums["jobs"] == 1:
        return {**row, "array_states": None}
    states = [(sums[f"jobs_{state.value.lower()}"], state.value) for state in JobState]
    same = {name: row[name] for name in _SAME_OF_TASKS if name in row}
    has_ended = sums["start_time"] is not None and sums["end_time"] is not None
    of_all = {
        **sums, "memory_used_bytes": sums["usage_memory_peak_bytes"],
        "energy_used_joules": sums["usage_energy_joules"],
        "elapsed_seconds": sums["end_time"] - sums["start_time"] if has_ended else None,
    }  # fmt: skip
    return {
        **dict.fromkeys(row), **{name: of_all[name] for name in row if name in of_all}, **same,
        "array_states": ", ".join(f"{number} {state}" for number, state in states if number),
    }  # fmt: skip


_SAME_OF_TASKS = (
    "id", "state", "source", "run", "array_jobid", "qos", "reason", "eligible_time",
    "requested_nodes", "requested_cpus", "requested_gpus",
)  # fmt: skip


@functools.cache
def columns(kind: JobGroupKind = JobGroupKind.ARRAY) -> tuple[ColumnElement[Any], ...]:
    """Columns of a group's row."""
    states = (
        sa.func.count(sa.case((_job.state == state.value, 1))).label(f"jobs_{state.value.lower()}")
        for state in JobState
    )
    ended = sa.func.count(_job.end_time) == sa.func.count()
    possible = sa.case((efficiency.CPU_IS_WHOLE, efficiency.CPU_SECONDS))
    available = sa.case((possible.is_not(None), efficiency.CPU_AVAILABLE))
    return (
        _job.cluster,
        _GROUP_ID[kind].label("jobid"),
        _job.username,
        *(sa.func.max(_job[name]).label(name) for name in ("account", "partition", "name")),
        sa.func.count().label("jobs"),
        *states,
        sa.func.min(_job.submit_time).label("submit_time"),
        sa.func.min(_job.start_time).label("start_time"),
        sa.case((ended, sa.func.max(_job.end_time))).label("end_time"),
        sa.func.sum(efficiency.RUN_SECONDS).label("elapsed_seconds"),
        sa.func.sum(efficiency.CPU_ALLOCATED).label("allocated_cpu_seconds"),
        sa.func.count(sa.case((_usage.samples > 0, 1))).label("jobs_measured"),
        sa.func.sum(efficiency.CPU_SECONDS).label("cpu_seconds"),
        (sa.func.sum(possible) / _sum_or_null(available)).label("cpu_efficiency"),
        sa.func.max(_usage.memory_peak_bytes).label("usage_memory_peak_bytes"),
        sa.func.sum(efficiency.ENERGY).label("usage_energy_joules"),
        sa.func.count(efficiency.ENERGY).label("jobs_with_energy"),
    )


def _sum_or_null(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return sa.func.nullif(sa.func.sum(column), 0.0)


def _latest_groups(
    db: Connection,
    kind: JobGroupKind,
    limit: int,
    conditions: Sequence[ColumnElement[bool]],
    after: After | None,
) -> Sequence[Any]:
    last, number = sa.func.max(_job.start_time), sa.func.max(_job.id)
    keys = (_job.cluster, _GROUP_ID[kind].label("group_id"), _job.username)
    query = (
        sa.select(*keys, last.label("last_start"), number.label("last_id"))
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(_GROUP_ID[kind] != "", *conditions)
        .group_by(*keys)
        .order_by(last.desc(), number.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.having(sa.tuple_(last, number) < sa.tuple_(after.value, after.id))
    return db.execute(query).all()


def _members(kind: JobGroupKind) -> ColumnElement[bool]:
    # This matches the partial index, which contains only array tasks and components of het jobs.
    group_id = _GROUP_ID[kind]
    return (
        (group_id != sa.literal_column("''"))
        & _job.cluster.in_(sa.bindparam("clusters", expanding=True))
        & group_id.in_(sa.bindparam("groups", expanding=True))
    )


def _read_groups(db: Connection, statement: sa.Select[Any], found: Sequence[Any]) -> Sequence[Any]:
    """The rows of a statement with `_members`, which may read thousands of jobs for each group."""
    clusters = tuple(sorted({each[0] for each in found}))
    ids = tuple(sorted({each[1] for each in found}))
    return read_if_changed(db, statement, clusters=clusters, groups=ids) if found else ()


def _within_limit(
    db: Connection, kind: JobGroupKind, found: Sequence[Any], limit: int
) -> Sequence[Any]:
    """As many of the groups as do not have too many jobs in total."""
    sizes = {(row[0], row[1]): row[2] for row in _read_groups(db, _sizes(kind), found)}
    total = 0
    for index, each in enumerate(found):
        total += sizes.get(each[:2], 0)
        if total > limit:
            return found[:index]
    return found


@functools.cache
def _sizes(kind: JobGroupKind) -> sa.Select[Any]:
    keys = (_job.cluster, _GROUP_ID[kind])
    return sa.select(*keys, sa.func.count()).where(_members(kind)).group_by(*keys)


@cached_by_access
def _sums(access: Access, kind: JobGroupKind) -> sa.Select[Any]:
    query = sa.select(*columns(kind)).select_from(schema.job.outerjoin(schema.job_usage))
    shown = query.where(_members(kind), visible(access))
    return shown.group_by(_job.cluster, _GROUP_ID[kind], _job.username)


def _sum_groups(
    db: Connection, access: Access, kind: JobGroupKind, found: Sequence[Any]
) -> Sequence[RowMapping]:
    return [row._mapping for row in _read_groups(db, _sums(access, kind), found)]
