"""Arrays and het jobs, each as one row with its jobs' states and total usage."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.queries import index_walk, paging
from batchjob_stats_db.queries.efficiency import CPU_SECONDS, ELAPSED, ENERGY, RUN_TIME
from batchjob_stats_db.queries.filters import Filter, found_by, known_clusters, looked_at
from batchjob_stats_db.queries.index_walk import After
from batchjob_stats_db.queries.paging import JobPage

MOST = 100  # maximum groups per page

_job, _usage = schema.job.c, schema.job_usage.c


class JobGroupKind(StrEnum):
    """What makes jobs a group."""

    ARRAY = "array"
    HET = "het"


_WHOLE = {JobGroupKind.ARRAY: _job.array_jobid, JobGroupKind.HET: _job.het_jobid}


class _Group(NamedTuple):
    cluster: str
    whole: str
    user: str
    last_start: float
    last_id: int


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
    clusters = known_clusters(db, which.cluster)
    visible_here = (_job.cluster.in_(clusters), visible(access))
    candidates = [*visible_here, _job.start_time.is_not(None), *found_by(which, _job.start_time)]
    paging.bounded(db, schema.job, candidates, "arrays and het jobs")
    found = _latest(db, kind, limit, [*candidates, *looked_at(which)], after)
    kept = _affordable(db, kind, found[:limit])
    cut = len(kept) < len(found)
    more = After(kept[-1].last_start, kept[-1].last_id) if cut else None
    rows = {
        (row["cluster"], row["jobid"], row["username"]): row
        for row in _summed(db, kind, kept, visible_here)
    }
    return JobPage([rows[each[:3]] for each in kept if each[:3] in rows], more)


def columns(kind: JobGroupKind = JobGroupKind.ARRAY) -> tuple[ColumnElement[Any], ...]:
    """Columns of a group's row."""
    states = (
        sa.func.count(sa.case((_job.state == state.value, 1))).label(f"jobs_{state.value.lower()}")
        for state in JobState
    )
    ended = sa.func.count(_job.end_time) == sa.func.count()
    allocated = sa.cast(ELAPSED, sa.Float) * _job.allocated_cpus
    known = sa.case((CPU_SECONDS.is_not(None), allocated))
    return (
        _job.cluster,
        _WHOLE[kind].label("jobid"),
        _job.username,
        *(sa.func.max(_job[name]).label(name) for name in ("account", "partition", "name")),
        sa.func.count().label("jobs"),
        *states,
        sa.func.min(_job.submit_time).label("submit_time"),
        sa.func.min(_job.start_time).label("start_time"),
        sa.case((ended, sa.func.max(_job.end_time))).label("end_time"),
        sa.func.sum(RUN_TIME).label("elapsed_seconds"),
        sa.func.sum(allocated).label("allocated_cpu_seconds"),
        sa.func.count(sa.case((_usage.samples > 0, 1))).label("jobs_measured"),
        sa.func.sum(CPU_SECONDS).label("cpu_seconds"),
        (sa.func.sum(CPU_SECONDS) / sa.func.nullif(sa.func.sum(known), 0.0)).label(
            "cpu_efficiency"
        ),
        sa.func.max(_usage.memory_peak_bytes).label("usage_memory_peak_bytes"),
        sa.func.sum(ENERGY).label("usage_energy_joules"),
    )


def _latest(
    db: Connection,
    kind: JobGroupKind,
    limit: int,
    conditions: Sequence[ColumnElement[bool]],
    after: After | None,
) -> list[_Group]:
    last, number = sa.func.max(_job.start_time), sa.func.max(_job.id)
    keys = (_job.cluster, _WHOLE[kind], _job.username)
    query = (
        sa.select(*keys, last, number)
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(_WHOLE[kind] != "", *conditions)
        .group_by(*keys)
        .order_by(last.desc(), number.desc())
        .limit(limit + 1)
    )
    if after is not None:
        beyond = (last < after.value) | ((last == after.value) & (number < after.id))
        query = query.having(beyond)
    return [_Group(*row) for row in db.execute(query)]


def _members(kind: JobGroupKind, found: Sequence[_Group]) -> ColumnElement[bool]:
    # This matches the partial index, which contains only array tasks and components of het jobs.
    whole = _WHOLE[kind]
    return (
        (whole != sa.literal_column("''"))
        & _job.cluster.in_({each.cluster for each in found})
        & whole.in_({each.whole for each in found})
    )


def _affordable(db: Connection, kind: JobGroupKind, found: Sequence[_Group]) -> Sequence[_Group]:
    """As many of the groups as do not have too many jobs in total; at least one."""
    keys = (_job.cluster, _WHOLE[kind])
    counted = sa.select(*keys, sa.func.count()).where(_members(kind, found)).group_by(*keys)
    sizes = {(row[0], row[1]): row[2] for row in db.execute(counted)}
    total = 0
    for index, each in enumerate(found):
        total += sizes.get(each[:2], 0)
        if total > index_walk.MOST_READ and index:
            return found[:index]
    return found


def _summed(
    db: Connection,
    kind: JobGroupKind,
    found: Sequence[_Group],
    conditions: Sequence[ColumnElement[bool]],
) -> Sequence[RowMapping]:
    query = (
        sa.select(*columns(kind))
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(_members(kind, found), *conditions)
        .group_by(_job.cluster, _WHOLE[kind], _job.username)
    )
    return db.execute(query).mappings().all()
