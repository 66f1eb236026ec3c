"""Arrays, each as one row of a list, with its tasks' states and total usage."""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.judgements import RUNNING_STATES
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, cached_by_access, visible
from batchjob_stats_db.database.engine import read_if_changed
from batchjob_stats_db.queries import job_list
from batchjob_stats_db.queries.efficiency import statement_column, with_figures
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import FoundJob, JobPage, Page, SortOrder

_job = schema.job.c

Array = tuple[str, str, str]
"""Its cluster, id and user."""
Totals = Mapping[str, Any]

MOST_TASKS = 20_000  # tasks of the arrays of a page; those of further arrays are listed one by one
_MOST_READS = 20  # of a page of arrays, whose tasks fill a list: a page may be shorter
_MOST_LEFT_OUT = 250  # in one statement: SQLite refuses one with a thousand terms


def list_jobs(
    db: Connection, access: Access, which: Filter, order: SortOrder = job_list.NEWEST_FIRST,
    page: Page = job_list.FIRST_PAGE,
) -> JobPage:  # fmt: skip
    """See job_list.list_jobs; with `arrays_once`, one row has the sums and states of an array.

    It is at the place of the task that stands for the array. The others are skipped by reading on
    without them: to find for each task whether it is the one would read the array each time.
    """
    if not which.arrays_once:
        return job_list.list_jobs(db, access, which, order, page)
    shown: dict[int, Totals | None] = {}  # by the row of the job, or of the task for its array
    arrays: dict[Array | None, Totals | None] = {None: None}
    more = page.after
    for _ in range(_MOST_READS):
        sizes = [(of["jobs"], (*each, of["id"])) for each, of in arrays.items() if each and of]
        largest = sorted(sizes, reverse=True)[:_MOST_LEFT_OUT]
        others = which._replace(arrays_left_out=tuple(each for _, each in largest))
        rest = Page(page.limit - len(shown), more)
        jobs, more = job_list.find_page(db, access, others, order, rest)
        arrays |= _totals_of(db, access, {*map(_array_of, jobs)} - arrays.keys())
        for job in jobs:
            totals = arrays[_array_of(job)]
            if totals is None or totals["id"] == job.id:
                shown[job.id] = totals
        if more is None or len(shown) == page.limit:
            break
    rows = job_list.rows_by_ids(db, list(shown), page.columns)
    return JobPage([_array_row(row, shown[row["id"]]) for row in rows], more)


def _array_of(job: FoundJob) -> Array | None:
    """The array of a task; None for other jobs, as workflows of tracked work are no arrays."""
    is_task = job.array_jobid and not job.tool
    return (job.cluster, job.array_jobid, job.username) if is_task else None


def _array_row(row: RowMapping, totals: Totals | None) -> Any:
    """The row of an array instead of that of a task, whose own figures are left out."""
    if totals is None or totals["jobs"] == 1:
        return {**row, "array_states": None}
    same = {name: row[name] for name in _SAME_OF_TASKS if name in row}
    of_all = {name: totals[name] for name in row if name in totals}
    return {**dict.fromkeys(row), **of_all, **same, "array_states": totals["array_states"]}


_SAME_OF_TASKS = (
    "id", "cluster", "username", "state", "source", "run", "array_jobid", "qos", "reason",
    "eligible_time", "requested_nodes", "requested_cpus", "requested_gpus",
)  # fmt: skip


# What is summed up of an array's tasks in each state, and then of all.

_HOW: Mapping[str, Callable[[list[Any]], Any]] = {"min": min, "max": max, "sum": sum}


@functools.cache
def _summed() -> Mapping[str, tuple[str, ColumnElement[Any]]]:
    """How, and of which column of a task."""
    used, available, ratio, energy, peak = (
        getattr(statement_column(name), "element", statement_column(name))
        for name in ("cpu_used_seconds", "cpu_available_seconds", "cpu_efficiency",
                     "usage_energy_joules", "usage_memory_peak_bytes")
    )  # fmt: skip
    is_whole = ratio.is_not(None)
    return {
        "id": ("max", _job.id),
        "jobs": ("sum", sa.literal_column("1")),
        "unfinished": ("sum", sa.case((_job.end_time.is_(None), 1), else_=0)),
        **{name: ("max", _job[name]) for name in ("account", "partition", "name", "end_time")},
        **{name: ("min", _job[name]) for name in ("submit_time", "start_time")},
        "cpu_seconds": ("sum", used),
        "cpu_used_seconds": ("sum", sa.case((is_whole, used))),
        "cpu_available_seconds": ("sum", sa.case((is_whole, available))),
        "usage_memory_peak_bytes": ("max", peak),
        "usage_energy_joules": ("sum", energy),
    }


@cached_by_access
def _sums(access: Access) -> sa.Select[Any]:
    keys = (_job.cluster, _job.array_jobid, _job.username, _job.state)
    sums = (getattr(sa.func, how)(of).label(name) for name, (how, of) in _summed().items())
    # A subquery: grouped by user, SQLite without statistics would prefer the index by user.
    tasks = _job.id.in_(sa.select(_job.id).where(_MEMBERS))
    query = sa.select(*keys, *sums).select_from(with_figures()).group_by(*keys)
    return query.where(tasks, _job.tool == "", visible(access))


def _totals_of(
    db: Connection, access: Access, arrays: set[Array | None]
) -> dict[Array | None, Totals | None]:
    """The totals of each array; None for those that are too large."""
    by_state = defaultdict(list)
    for row in _read(db, _sums(access), _within_limit(db, sorted(filter(None, arrays)))):
        by_state[row[:3]].append(row._mapping)
    return dict.fromkeys(arrays) | {each: _total(by_state[each]) for each in arrays & {*by_state}}


def _total(by_state: Sequence[RowMapping]) -> Totals:
    """Totals of all tasks, and the task that stands for them.

    It is the one that was recorded last of those that run, or else wait, or else have ended.
    """
    total: dict[str, Any] = {}
    for name, (how, _) in _summed().items():
        known = [row[name] for row in by_state if row[name] is not None]
        total[name] = _HOW[how](known) if known else None
    states = {row["state"]: row["jobs"] for row in by_state}
    available, start, end = (
        total[name] for name in ("cpu_available_seconds", "start_time", "end_time")
    )
    if total["unfinished"]:
        end = None
    return {
        **total,
        "jobid": by_state[0]["array_jobid"],
        "id": max((_liveness(row["state"]), row["id"]) for row in by_state)[1],
        "end_time": end,
        "elapsed_seconds": None if start is None or end is None else end - start,
        "cpu_efficiency": total["cpu_used_seconds"] / available if available else None,
        "memory_used_bytes": total["usage_memory_peak_bytes"],
        "energy_used_joules": total["usage_energy_joules"],
        "array_states": ", ".join(
            f"{states[state]} {state.value}" for state in JobState if state in states
        ),
    }


def _liveness(state: str) -> int:
    return 2 if state in RUNNING_STATES else 1 if state == JobState.PENDING else 0


_array = (_job.cluster, _job.array_jobid)
_MEMBERS = sa.and_(
    _job.array_jobid != sa.literal_column("''"),  # the partial index contains only array tasks
    *(column.in_(sa.bindparam(f"{column.name}s", expanding=True)) for column in _array),
)
_SIZES = sa.select(*_array, sa.func.count()).where(_MEMBERS).group_by(*_array)


def _read(db: Connection, statement: sa.Select[Any], arrays: Sequence[Array]) -> Sequence[Any]:
    """The rows of a statement with `_MEMBERS`, which may read thousands of jobs for each array."""
    clusters, ids = ({each[place] for each in arrays} for place in (0, 1))
    values = {"clusters": tuple(sorted(clusters)), "array_jobids": tuple(sorted(ids))}
    return read_if_changed(db, statement, **values) if arrays else ()


def _within_limit(db: Connection, arrays: Sequence[Array]) -> Sequence[Array]:
    """As many of the arrays as do not have too many tasks in total."""
    sizes = {row[:2]: row[2] for row in _read(db, _SIZES, arrays)}
    total = 0
    for index, each in enumerate(arrays):
        total += sizes.get(each[:2], 0)
        if total > MOST_TASKS:
            return arrays[:index]
    return arrays
