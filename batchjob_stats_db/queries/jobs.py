"""Jobs: one, a page of them, those that run."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db import schema
from batchjob_stats_db.access import Access, terms, visible

MOST = 1000  # rows of a page


class After(NamedTuple):
    """Where a page ends: the next one goes on below. A job without start time sorts last."""

    start_time: int
    id: int


class Filter(NamedTuple):
    """Which jobs; None or empty is any."""

    cluster: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    states: tuple[str, ...] = ()
    jobid: str | None = None
    array_jobid: str | None = None
    name: str | None = None
    node: str | None = None
    started_from: int | None = None
    started_before: int | None = None
    elapsed_at_least: int | None = None
    elapsed_at_most: int | None = None


def newest(
    db: Connection,
    access: Access,
    limit: int = 100,
    which: Filter | None = None,
    after: After | None = None,
    *,
    started: bool = True,
    oldest_first: bool = False,
) -> list[RowMapping]:
    """Jobs that have started, by start time, newest first, with their usage.

    Or those that have not: they wait, or were cancelled before; by the order they came in.
    """
    chosen = which or Filter()
    job = schema.job
    source: Any = job.outerjoin(schema.job_usage)
    order: tuple[ColumnElement[Any], ...] = (job.c.start_time, job.c.id)
    if chosen.node is not None:
        # A node's jobs are one range of job_node's index; there the order is by its columns.
        source = schema.job_node.join(source, schema.job_node.c.job_id == job.c.id)
        order = (schema.job_node.c.start_time, schema.job_node.c.job_id)
    start = order[0]
    query = (
        sa.select(*columns())
        .select_from(source)
        .where(start.is_not(None) if started else start.is_(None))
        .order_by(*(column.asc() if oldest_first else column.desc() for column in order))
        .limit(min(limit, MOST))
    )
    if after is not None:
        # Without start times their place is the second half alone: no NULL is below another.
        place, here = (order, after) if started else (order[1:], after[1:])
        beyond, end = sa.tuple_(*place), sa.tuple_(*here)
        query = query.where(beyond > end if oldest_first else beyond < end)
    found: dict[int, RowMapping] = {}
    for cluster in known_clusters(db, chosen.cluster):
        conditions = _conditions(chosen._replace(cluster=cluster), start)
        for term in terms(access, cluster=cluster):
            for row in db.execute(query.where(term, *conditions)).mappings():
                found[row["id"]] = row
    by_time = sorted(
        found.values(),
        key=lambda row: (row["start_time"] or 0, row["id"]),
        reverse=not oldest_first,
    )
    return by_time[:limit]


def pending(
    db: Connection, access: Access, limit: int = 100, which: Filter | None = None
) -> list[RowMapping]:
    """Jobs that wait, newest first."""
    return _unfinished(db, access, ("PENDING",), limit, which)


def running(
    db: Connection, access: Access, limit: int = 100, which: Filter | None = None
) -> list[RowMapping]:
    """Jobs that run or are suspended, newest first."""
    return _unfinished(db, access, ("RUNNING", "SUSPENDED"), limit, which)


def _unfinished(
    db: Connection, access: Access, states: tuple[str, ...], limit: int, which: Filter | None
) -> list[RowMapping]:
    job = schema.job.c
    query = (
        sa.select(*columns())
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(
            job.end_time.is_(None), job.state.in_(states), visible(access),
            *_conditions(which or Filter(), job.start_time),
        )
        .order_by(sa.func.coalesce(job.start_time, job.submit_time).desc(), job.id.desc())
        .limit(min(limit, MOST))
    )  # fmt: skip
    return list(db.execute(query).mappings())


def by_id(db: Connection, access: Access, job_id: int) -> RowMapping | None:
    """A job by the number of its row."""
    job = schema.job
    query = (
        sa.select(*columns())
        .select_from(job.outerjoin(schema.job_usage))
        .where(job.c.id == job_id, visible(access))
    )
    return db.execute(query).mappings().first()


def runs_of(
    db: Connection, access: Access, jobid: str, cluster: str | None = None
) -> list[RowMapping]:
    """All runs under a scheduler's job id, the latest first."""
    job = schema.job
    clusters = known_clusters(db, cluster)  # the unique index begins with it
    query = (
        sa.select(*columns())
        .select_from(job.outerjoin(schema.job_usage))
        .where(job.c.cluster.in_(clusters), job.c.jobid == jobid, visible(access))
        .order_by(job.c.submit_time.desc(), job.c.run.desc())
        .limit(MOST)
    )
    return list(db.execute(query).mappings())


def parts_of(db: Connection, access: Access, job_id: int) -> dict[str, list[RowMapping]] | None:
    """Nodes, steps, GPUs and emissions of a job; None for a job that may not be seen."""
    if by_id(db, access, job_id) is None:
        return None
    return {
        name: list(
            db.execute(
                sa.select(table).where(table.c.job_id == job_id).order_by(*table.primary_key)
            ).mappings()
        )
        for name, table in (
            ("nodes", schema.job_node),
            ("steps", schema.job_step),
            ("gpus", schema.job_gpu),
            ("emissions", schema.job_emissions),
        )
    }


def count(db: Connection, access: Access, which: Filter, most: int = 10_000) -> int:
    """How many jobs there are, counted up to `most`: more is "more than"."""
    job = schema.job
    source: Any = job
    start: ColumnElement[Any] = job.c.start_time
    if which.node is not None:
        source = schema.job_node.join(job)
        start = schema.job_node.c.start_time
    some = (
        sa.select(job.c.id)
        .select_from(source)
        .where(visible(access), *_conditions(which, start))
        .limit(most)
        .subquery()
    )
    return db.execute(sa.select(sa.func.count()).select_from(some)).scalar() or 0


def known_clusters(db: Connection, cluster: str | None) -> Sequence[str]:
    """This cluster, or all: the indexes of `job` begin with it."""
    if cluster is not None:
        return [cluster]
    return db.execute(sa.select(schema.cluster.c.name)).scalars().all()


def columns() -> Iterable[ColumnElement[Any]]:
    """The job's columns under their names, those of its usage with `usage_` before."""
    usage = (column for column in schema.job_usage.columns if column.name != "job_id")
    return (*schema.job.columns, *(column.label(f"usage_{column.name}") for column in usage))


def _conditions(which: Filter, start: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    job = schema.job.c
    exact = {
        job.cluster: which.cluster, job.username: which.user, job.account: which.account,
        job.partition: which.partition, job.qos: which.qos, job.jobid: which.jobid,
        job.array_jobid: which.array_jobid, job.name: which.name,
        schema.job_node.c.node: which.node,
    }  # fmt: skip
    conditions: list[ColumnElement[bool]] = [
        column == value for column, value in exact.items() if value is not None
    ]
    if which.node is not None and which.cluster is not None:
        conditions.append(schema.job_node.c.cluster == which.cluster)
    if which.states:
        conditions.append(job.state.in_(which.states))
    if which.started_from is not None:
        conditions.append(start >= which.started_from)
    if which.started_before is not None:
        conditions.append(start < which.started_before)
    if which.elapsed_at_least is not None:
        conditions.append(job.elapsed_seconds >= which.elapsed_at_least)
    if which.elapsed_at_most is not None:
        conditions.append(job.elapsed_seconds <= which.elapsed_at_most)
    return conditions
