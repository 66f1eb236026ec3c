"""Pages of jobs in any order.

By start time, and everybody's by end time, an index is walked (index_walk.py). In any other order,
all matching jobs are read and sorted, up to a maximum.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.queries import index_walk
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_db.queries.filters import Filter, found_by, known_clusters, looked_at
from batchjob_stats_db.queries.index_walk import After, IndexWalk, Numbers
from batchjob_stats_db.queries.job_rows import numbered
from batchjob_stats_db.queries.statements import remembered

MOST = 1000  # maximum rows per page

_KEYS = (
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

SORTS: Mapping[str, ColumnElement[Any]] = {key: _COLUMNS[key] for key in _KEYS}
"""What jobs may be ordered by: names of their columns, the usual ones first."""


class SortOrder(NamedTuple):
    """The key of the order; equal rows are ordered by number, in the same direction."""

    key: str = "start_time"
    descending: bool = True


class JobPage(NamedTuple):
    """A page with all columns of the jobs."""

    rows: list[RowMapping]
    more: After | None


class TooManyError(ValueError):
    """A query would have to read more jobs than it may; the text says what would help."""


def numbers(
    db: Connection,
    access: Access,
    limit: int = 100,
    which: Filter | None = None,
    after: After | None = None,
    *,
    order: SortOrder | None = None,
    started: bool | None = None,
) -> Numbers:
    """Waiting jobs, then started ones, then those that ended without starting.

    `started` True returns only started ones, False only the others, in one list. The newest come
    first unless `order` says otherwise. Jobs without the value come last, except for `end_time`, by
    which only ended jobs are listed if an index is walked. Raises TooManyError.
    """
    wanted, by = which or Filter(), order or SortOrder()
    limit = min(limit, MOST)
    if by.key == "start_time" and not wanted.running:
        place = (schema.job.c.start_time, schema.job.c.id)
        if wanted.node is not None:
            # A node's jobs are one range in the index of job_node, so order by its columns.
            place = (schema.job_node.c.start_time, schema.job_node.c.job_id)
        if started is not None:
            walk = IndexWalk(place, wanted, by.descending, started)
            return walk.numbers(db, access, limit, after)
        return _through_parts(db, access, limit, wanted, after, place, by.descending)
    narrowed = (wanted.user, wanted.account, wanted.node)
    if (
        by.key == "end_time"
        and access.everything
        and narrowed == (None,) * 3
        and started is not False
    ):
        place = (schema.job.c.end_time, schema.job.c.id)
        walk = IndexWalk(place, wanted, by.descending, True, begun=started is not None)
        return walk.numbers(db, access, limit, after)
    return _sorted(db, access, limit, wanted, after, by, started)


def read(db: Connection, found: Numbers) -> JobPage:
    """The jobs that `numbers` found."""
    return JobPage(numbered(db, found.ids), found.more)


WAITING, STARTED, NEVER_STARTED = "waiting", "started", "never started"
"""The parts of a list by start time."""


def _through_parts(
    db: Connection, access: Access, limit: int, which: Filter, after: After | None,
    place: tuple[ColumnElement[Any], ColumnElement[Any]], descending: bool,
) -> Numbers:  # fmt: skip
    """Part by part; a page may end within one and begin with the next."""
    without_start = _without_start(which)
    parts = [WAITING, STARTED, NEVER_STARTED] if without_start else [STARTED]
    if without_start and which.states == ("PENDING",):
        parts = [WAITING]
    at = after.part if after and after.part in parts else parts[0]
    ids: list[int] = []
    for part in parts[parts.index(at) :]:
        here = after if after and after.part == part and after.id != _BEFORE_ALL else None
        left = limit - len(ids)
        if part == WAITING:
            found = _waiting(db, access, left, which, here, descending)
        else:
            never = part == NEVER_STARTED
            walk = IndexWalk(place, which, descending, known=not never, ended=never)
            found = walk.numbers(db, access, left, here)
        # A job that has just started or ended was still waiting when the part before was read.
        listed = set(ids)
        ids += [each for each in found.ids if each not in listed]
        if found.more:
            return Numbers(ids, found.more._replace(part=part))
        if len(ids) == limit and part != parts[-1]:
            return Numbers(ids, After(None, _BEFORE_ALL, parts[parts.index(part) + 1]))
    return Numbers(ids, None)


_BEFORE_ALL = 0  # in place of a job id: at the beginning of the part


def _without_start(which: Filter) -> bool:
    """Whether a job without a start can match."""
    times = (which.started_from, which.started_before, which.node)
    live = not which.states or "PENDING" in which.states
    ended = any(state not in ("PENDING", "RUNNING", "SUSPENDED") for state in which.states)
    return times == (None,) * 3 and not which.running and (live or ended)


def _waiting(
    db: Connection, access: Access, limit: int, which: Filter, after: After | None, descending: bool
) -> Numbers:
    """Waiting jobs by submit time, sorted; there are as many as the queue is long."""
    clusters = tuple(known_clusters(db, which.cluster))
    found = db.execute(_of_queue(access, clusters, which, after, descending, limit + 1)).all()
    more = After(*found[limit - 1]) if len(found) > limit else None
    return Numbers([row.id for row in found[:limit]], more)


@remembered
def _of_queue(
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
            *found_by(which, job.start_time), *looked_at(which), *beyond,
        )
        .order_by(*(each.desc() if descending else each.asc() for each in place))
        .limit(most)
    )  # fmt: skip


def reads_only_its_rows(access: Access, which: Filter, order: SortOrder) -> bool:
    """Whether a page consists of a few ranges of an index, without skipped rows."""
    narrowed = [each for each in (which.user, which.account, which.node) if each is not None]
    ranges = len(narrowed) <= 1 if access.everything else narrowed in ([], _only_login(access))
    by_end = (which.ended_from, which.ended_before) != (None, None)
    passed_over = which.running or by_end or access.dated() or looked_at(which)
    return order.key == "start_time" and ranges and not passed_over and access.few()


def _only_login(access: Access) -> list[str]:
    alone = len(access.users) == 1 and not access.accounts and not access.clusters
    return [access.users[0].user] if alone else []


def _sorted(
    db: Connection, access: Access, limit: int, which: Filter, after: After | None, by: SortOrder,
    started: bool | None,
) -> Numbers:  # fmt: skip
    job = schema.job.c
    source: Any = schema.job
    start: ColumnElement[Any] = job.start_time
    if which.node is not None:
        source = schema.job_node.join(schema.job, schema.job_node.c.job_id == job.id)
        start = schema.job_node.c.start_time
    candidates = [
        job.cluster.in_(known_clusters(db, which.cluster)), visible(access),
        *([] if started is None else [start.is_not(None) if started else start.is_(None)]),
        *found_by(which, start),
    ]  # fmt: skip
    bounded(db, source, candidates, f"jobs by {by.key}")
    key = SORTS[by.key]
    query = (
        sa.select(job.id, key.label("sorted_by"))
        .select_from(source.outerjoin(schema.job_usage, schema.job_usage.c.job_id == job.id))
        .where(*candidates, *looked_at(which), *_beyond(key, after, by.descending))
        .order_by(
            key.is_(None), *(each.desc() if by.descending else each for each in (key, job.id))
        )
        .limit(limit + 1)
    )
    found = db.execute(query).all()
    more = After(found[limit - 1][1], found[limit - 1][0]) if len(found) > limit else None
    return Numbers([row[0] for row in found[:limit]], more)


def bounded(
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


def _beyond(
    key: ColumnElement[Any], after: After | None, descending: bool
) -> list[ColumnElement[bool]]:
    """Rows without the value come last; among equal ones, the number decides."""
    if after is None:
        return []
    number = schema.job.c.id < after.id if descending else schema.job.c.id > after.id
    if after.value is None:
        return [key.is_(None) & number]
    further = key < after.value if descending else key > after.value
    return [further | ((key == after.value) & number) | key.is_(None)]
