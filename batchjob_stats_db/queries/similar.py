"""A user's other jobs that resemble one."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, cached_by_access, visible
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.job_list import COLUMN_NAMES, ColumnNames, rows_by_ids

_COMPARED_JOBS = 5000  # before this one; older ones are too old to compare with
_SHORT_SECONDS = 60
_EVER = 1 << 53  # later than all times
_REQUEST = ("account", "partition", "allocated_cpus", "allocated_nodes", "allocated_gpus")
_MAX_COUNTED = 1000
MOST_NAMED_RUNS = 50
_OTHER = schema.job.alias()


def similar(
    db: Connection,
    access: Access,
    job: Mapping[Any, Any],
    most: int = 20,
    names: ColumnNames = COLUMN_NAMES,
) -> tuple[str, Sequence[RowMapping]]:
    """The user's latest successful jobs before this one, after what they have in common with it.

    Those of the same name, else those of the same account, partition and size. Runs of one machine
    have neither account nor partition: those with other names have nothing in common. A job that
    waits has no allocation to compare.
    """
    found: tuple[str, Sequence[RowMapping]] = ("", ())
    requested = job["start_time"] is not None and (job["account"] or job["partition"])
    for shared_columns in (("name",) if job["name"] else (), _REQUEST if requested else ()):
        if not shared_columns:
            continue
        parameters = {name: job[name] for name in (*shared_columns, "cluster", "username", "id")}
        parameters["until"] = _EVER if job["start_time"] is None else job["start_time"]
        query = _latest_jobs(access, shared_columns, is_success=True)
        rows = rows_by_ids(db, db.scalars(query, {**parameters, "most": most}).all(), names)
        if len(rows) > len(found[1]):
            found = ("name" if shared_columns == ("name",) else "account, partition and size", rows)
        if len(rows) >= min(3, most):
            break
    return found


def longest_time_limit(db: Connection, job: Mapping[Any, Any]) -> float | None:
    """The longest time limit with which one of the cluster's latest jobs started in a partition."""
    table = schema.job.c
    latest = (
        sa.select(table.partition, table.time_limit_seconds)
        .where(table.cluster == job["cluster"], table.start_time.is_not(None))
        .order_by(table.start_time.desc())
        .limit(_COMPARED_JOBS)
    ).subquery()
    longest = sa.select(sa.func.max(latest.c.time_limit_seconds))
    found: float | None = db.scalar(longest.where(latest.c.partition == job["partition"]))
    return found


def same_name(
    db: Connection,
    access: Access,
    job: Mapping[Any, Any],
    most: int = MOST_NAMED_RUNS,
    names: ColumnNames = COLUMN_NAMES,
) -> Sequence[RowMapping]:
    """The latest runs of a job's name by its user on its cluster, the oldest first.

    In any end state; the job itself is among them unless there are too many later ones.
    """
    if not job["name"]:
        return ()
    parameters = {name: job[name] for name in ("cluster", "username", "name")}
    query = _latest_jobs(access, ("name",), is_success=False)
    return rows_by_ids(db, db.scalars(query, {**parameters, "most": most}).all(), names)[::-1]


@cached_by_access
def _latest_jobs(access: Access, shared: tuple[str, ...], *, is_success: bool) -> sa.Select[int]:
    """The latest of a user's started jobs on a cluster that share these columns.

    `is_success`: only those that were successful, up to a time, except one. The query goes back
    from the latest one, and stops reading when enough jobs are found, or so many are compared.
    """
    job, other = schema.job.c, _OTHER.c
    earliest = (
        sa.select(other.start_time)
        .where(*_started(other, is_success))
        .order_by(other.start_time.desc(), other.id.desc())
        .limit(1)
        .offset(_COMPARED_JOBS - 1)
        .scalar_subquery()
    )
    query = (
        sa.select(job.id)
        .where(
            *_started(job, is_success),
            job.start_time >= sa.func.coalesce(earliest, 0),
            *(job[name].is_not_distinct_from(sa.bindparam(name)) for name in shared),
            visible(access),
        )
        .order_by(job.start_time.desc(), job.id.desc())
        .limit(sa.bindparam("most"))
    )
    if not is_success:
        return query
    return query.where(
        job.state == "COMPLETED", job.end_time.is_not(None), job.id != sa.bindparam("id")
    )


def _started(table: Any, until: bool) -> list[ColumnElement[bool]]:
    begun = table.start_time <= sa.bindparam("until") if until else table.start_time.is_not(None)
    owner = [table[name] == sa.bindparam(name) for name in ("cluster", "username")]
    return [*owner, begun]


def short_jobs(db: Connection, access: Access, job: Mapping[Any, Any]) -> int | None:
    """How many of the user's jobs of the day before took a minute or less; at most a thousand.

    Tasks of arrays do not count.
    """
    if job["start_time"] is None:
        return None
    parameters = {name: job[name] for name in ("cluster", "username")}
    parameters |= {"since": job["start_time"] - DAY, "until": job["start_time"]}
    return db.execute(_short_jobs(access), parameters).scalar() or 0


@cached_by_access
def _short_jobs(access: Access) -> sa.Select[int]:
    table = schema.job.c
    some = (
        sa.select(table.id)
        .where(
            *_started(table, until=True),
            table.start_time > sa.bindparam("since"),
            table.elapsed_seconds <= _SHORT_SECONDS,
            table.end_time.is_not(None),
            table.array_jobid == sa.literal_column("''"),
            visible(access),
        )
        .limit(_MAX_COUNTED)
        .subquery()
    )
    return sa.select(sa.func.count()).select_from(some)
