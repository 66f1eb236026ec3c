"""Pages of jobs in any order.

By start time, and everybody's by end time, an index is walked (index_walk.py). In any other order,
all matching jobs are read and sorted, up to a maximum.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.queries import index_walk
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_db.queries.filters import (
    Filter,
    clusters_to_query,
    index_conditions,
    row_conditions,
)
from batchjob_stats_db.queries.index_walk import After, IdPage, IndexWalk
from batchjob_stats_db.queries.job_rows import rows_by_ids
from batchjob_stats_db.queries.statements import cached_by_access

MAX_PAGE_ROWS = 1000  # maximum rows per page

_SORT_KEYS = (
    "start_time", "elapsed_seconds", "cpu_efficiency", "usage_memory_peak_bytes",
    "usage_energy_joules", "energy_used_joules",
    "jobid", "submit_time", "end_time", "wait_seconds", "time_limit_seconds", "time_efficiency",
    "priority", "username", "account", "partition", "qos", "state", "name",
    "allocated_cpus", "allocated_gpus", "allocated_nodes", "allocated_memory_bytes",
    "memory_efficiency", "usage_gpu_utilization_ratio", "usage_gpu_memory_peak_bytes",
    "usage_io_read_bytes", "usage_io_written_bytes", "usage_throttled_seconds",
    "usage_network_received_bytes", "usage_network_sent_bytes",
)  # fmt: skip
_COLUMNS = {str(column.name): getattr(column, "element", column) for column in columns()}

SORTS: Mapping[str, ColumnElement[Any]] = {key: _COLUMNS[key] for key in _SORT_KEYS}
"""Sort keys of jobs, which are names of columns: the usual ones first."""


class SortOrder(NamedTuple):
    """A sort key and direction; equal rows are ordered by id, in the same direction."""

    key: str = "start_time"
    descending: bool = True


class JobPage(NamedTuple):
    """A page with all columns of the jobs."""

    rows: list[RowMapping]
    more: After | None


class TooManyError(ValueError):
    """A query would have to read more jobs than it may; the text says what would help."""


def find_ids(
    db: Connection,
    access: Access,
    limit: int = 100,
    which: Filter | None = None,
    after: After | None = None,
    *,
    order: SortOrder | None = None,
    started: bool | None = None,
) -> IdPage:
    """Ids of waiting jobs, then of started ones, then of those that ended without starting.

    `started` True returns only started ones, False only the others, in one list. The newest come
    first unless `order` says otherwise. Jobs without the value come last, except for `end_time`, by
    which only ended jobs are listed if an index is walked. Raises TooManyError.
    """
    filters, by = which or Filter(), order or SortOrder()
    limit = min(limit, MAX_PAGE_ROWS)
    if by.key == "start_time" and not filters.running:
        place = (schema.job.c.start_time, schema.job.c.id)
        if filters.node is not None:
            # A node's jobs are one range in the index of job_node, so order by its columns.
            place = (schema.job_node.c.start_time, schema.job_node.c.job_id)
        if started is not None:
            walk = IndexWalk(place, filters, by.descending, started)
            return walk.find_ids(db, access, limit, after)
        return _by_start_time(db, access, limit, filters, after, place, by.descending)
    filtered = (filters.user, filters.account, filters.node)
    if (
        by.key == "end_time"
        and access.everything
        and filtered == (None,) * 3
        and started is not False
    ):
        place = (schema.job.c.end_time, schema.job.c.id)
        walk = IndexWalk(place, filters, by.descending, True, started_only=started is not None)
        return walk.find_ids(db, access, limit, after)
    return _sorted(db, access, limit, filters, after, by, started)


def read_page(db: Connection, found: IdPage) -> JobPage:
    """The rows of a page of ids."""
    return JobPage(rows_by_ids(db, found.ids), found.more)


WAITING, STARTED, NEVER_STARTED = "waiting", "started", "never started"
"""The parts of a list by start time."""


def _by_start_time(
    db: Connection, access: Access, limit: int, which: Filter, after: After | None,
    place: tuple[ColumnElement[Any], ColumnElement[Any]], descending: bool,
) -> IdPage:  # fmt: skip
    """Read the list part by part; a page may extend over several parts."""
    all_parts = _can_lack_start(which)
    parts = [WAITING, STARTED, NEVER_STARTED] if all_parts else [STARTED]
    if all_parts and which.states == ("PENDING",):
        parts = [WAITING]
    first_part = after.part if after and after.part in parts else parts[0]
    ids: list[int] = []
    for part in parts[parts.index(first_part) :]:
        part_after = after if after and after.part == part and after.id != _BEFORE_ALL else None
        remaining = limit - len(ids)
        if part == WAITING:
            found = _waiting(db, access, remaining, which, part_after, descending)
        else:
            never = part == NEVER_STARTED
            walk = IndexWalk(place, which, descending, has_time=not never, not_pending=never)
            found = walk.find_ids(db, access, remaining, part_after)
        # A job that has just started or ended was still waiting when the part before was read.
        listed = set(ids)
        ids += [each for each in found.ids if each not in listed]
        if found.more:
            return IdPage(ids, found.more._replace(part=part))
        if len(ids) == limit and part != parts[-1]:
            return IdPage(ids, After(None, _BEFORE_ALL, parts[parts.index(part) + 1]))
    return IdPage(ids, None)


_BEFORE_ALL = 0  # in place of a job id: at the beginning of the part


def _can_lack_start(which: Filter) -> bool:
    """Whether jobs without a start time can match."""
    times = (which.started_from, which.started_before, which.node)
    live = not which.states or "PENDING" in which.states
    ended = any(not JobState(state).is_live for state in which.states)
    return times == (None,) * 3 and not which.running and (live or ended)


def _waiting(
    db: Connection, access: Access, limit: int, which: Filter, after: After | None, descending: bool
) -> IdPage:
    """Waiting jobs, sorted by submit time: there are at most as many as the queue is long."""
    clusters = tuple(clusters_to_query(db, which.cluster))
    found = db.execute(_waiting_query(access, clusters, which, after, descending, limit + 1)).all()
    more = After(*found[limit - 1]) if len(found) > limit else None
    return IdPage([row.id for row in found[:limit]], more)


@cached_by_access
def _waiting_query(
    access: Access, clusters: tuple[str, ...], which: Filter, after: After | None,
    descending: bool, most: int,
) -> sa.Select[Any]:  # fmt: skip
    job = schema.job.c
    place = (job.submit_time, job.id)
    beyond = []
    if after:
        at, end = sa.tuple_(*place), sa.tuple_(after.value, after.id)
        beyond.append(at < end if descending else at > end)
    return (
        sa.select(job.submit_time, job.id)
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(
            job.cluster.in_(clusters), visible(access),
            job.end_time.is_(None), job.state == "PENDING", job.start_time.is_(None),
            *index_conditions(which, job.start_time), *row_conditions(which), *beyond,
        )
        .order_by(*(each.desc() if descending else each.asc() for each in place))
        .limit(most)
    )  # fmt: skip


def reads_only_its_rows(access: Access, which: Filter, order: SortOrder) -> bool:
    """Whether a page consists of a few ranges of an index, without skipped rows."""
    filtered = [each for each in (which.user, which.account, which.node) if each is not None]
    is_one_range = (
        len(filtered) <= 1 if access.everything else filtered in ([], _only_login(access))
    )
    by_end = (which.ended_from, which.ended_before) != (None, None)
    skips_rows = which.running or by_end or access.has_time_limits() or row_conditions(which)
    return order.key == "start_time" and is_one_range and not skips_rows and access.is_small()


def _only_login(access: Access) -> list[str]:
    alone = len(access.users) == 1 and not access.accounts and not access.clusters
    return [access.users[0].user] if alone else []


def _sorted(
    db: Connection, access: Access, limit: int, which: Filter, after: After | None, by: SortOrder,
    started: bool | None,
) -> IdPage:  # fmt: skip
    job = schema.job.c
    source: Any = schema.job
    start: ColumnElement[Any] = job.start_time
    if which.node is not None:
        source = schema.job_node.join(schema.job, schema.job_node.c.job_id == job.id)
        start = schema.job_node.c.start_time
    candidates = [
        job.cluster.in_(clusters_to_query(db, which.cluster)), visible(access),
        *([] if started is None else [start.is_not(None) if started else start.is_(None)]),
        *index_conditions(which, start),
    ]  # fmt: skip
    check_row_limit(db, source, candidates, f"jobs by {by.key}")
    key = SORTS[by.key]
    query = (
        sa.select(job.id, key.label("sorted_by"))
        .select_from(source.outerjoin(schema.job_usage, schema.job_usage.c.job_id == job.id))
        .where(*candidates, *row_conditions(which), *_after_conditions(key, after, by.descending))
        .order_by(
            key.is_(None), *(each.desc() if by.descending else each for each in (key, job.id))
        )
        .limit(limit + 1)
    )
    found = db.execute(query).all()
    more = After(found[limit - 1][1], found[limit - 1][0]) if len(found) > limit else None
    return IdPage([row[0] for row in found[:limit]], more)


def check_row_limit(
    db: Connection, source: Any, candidates: Sequence[ColumnElement[bool]], what: str
) -> None:
    """Raise TooManyError if more jobs match these conditions than may be read."""
    some = (
        sa.select(schema.job.c.id)
        .select_from(source)
        .where(*candidates)
        .limit(index_walk.MOST_READ + 1)
    )
    count = db.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar() or 0
    if count > index_walk.MOST_READ:
        raise TooManyError(
            f"for {what} more than {index_walk.MOST_READ} jobs would have to be read; "
            "narrow the query by start or end time, user, account, node or running"
        )


def _after_conditions(
    key: ColumnElement[Any], after: After | None, descending: bool
) -> list[ColumnElement[bool]]:
    """Rows without the value come last; among equal ones, the id decides."""
    if after is None:
        return []
    number = schema.job.c.id < after.id if descending else schema.job.c.id > after.id
    if after.value is None:
        return [key.is_(None) & number]
    further = key < after.value if descending else key > after.value
    return [further | ((key == after.value) & number) | key.is_(None)]
