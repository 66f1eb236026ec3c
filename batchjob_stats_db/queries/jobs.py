"""Queries of jobs: one with its parts, running or waiting ones, and their number."""

import functools
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.judgements import RUNNING_STATES
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.queries.filters import (
    Filter,
    clusters_to_query,
    index_conditions,
    row_conditions,
)
from batchjob_stats_db.queries.index_walk import After
from batchjob_stats_db.queries.job_rows import COLUMN_NAMES, ColumnNames, selected_rows
from batchjob_stats_db.queries.paging import MAX_PAGE_ROWS
from batchjob_stats_db.queries.statements import cached_by_access


def pending(
    db: Connection, access: Access, limit: int = 100, which: Filter | None = None,
    names: ColumnNames = COLUMN_NAMES, after: After | None = None,
) -> list[RowMapping]:  # fmt: skip
    """Waiting jobs, newest first; `after` is the `position` of the previous page's last job."""
    return _unfinished(db, access, ("PENDING",), limit, which, names, after)


def running(
    db: Connection, access: Access, limit: int = 100, which: Filter | None = None,
    names: ColumnNames = COLUMN_NAMES, after: After | None = None,
) -> list[RowMapping]:  # fmt: skip
    """Running or suspended jobs, newest first; `after` as for `pending`."""
    return _unfinished(db, access, RUNNING_STATES, limit, which, names, after)


def position(row: Mapping[Any, Any]) -> After:
    """The position of a job in the list of waiting or running jobs."""
    start = row["start_time"]
    return After(row["submit_time"] if start is None else start, row["id"])


def _unfinished(
    db: Connection, access: Access, states: tuple[str, ...], limit: int, which: Filter | None,
    names: ColumnNames, after: After | None,
) -> list[RowMapping]:  # fmt: skip
    return selected_rows(
        db,
        _unfinished_query(access, states, min(limit, MAX_PAGE_ROWS), which or Filter(), after),
        names,
    )


@cached_by_access
def _unfinished_query(
    access: Access, states: tuple[str, ...], limit: int, which: Filter, after: After | None
) -> sa.Select[int]:
    job = schema.job.c
    order = (sa.func.coalesce(job.start_time, job.submit_time), job.id)
    beyond = [sa.tuple_(*order) < sa.tuple_(after.value, after.id)] if after else []
    return (
        sa.select(job.id)
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(
            job.end_time.is_(None), job.state.in_(states), visible(access),
            *index_conditions(which, job.start_time), *row_conditions(which), *beyond,
        )
        .order_by(*(each.desc() for each in order))
        .limit(limit)
    )  # fmt: skip


def by_id(db: Connection, access: Access, job_id: int) -> RowMapping | None:
    """A job by the id of its row."""
    job = schema.job.c
    return next(
        iter(selected_rows(db, sa.select(job.id).where(job.id == job_id, visible(access)))), None
    )


def runs_of(
    db: Connection, access: Access, jobid: str, cluster: str | None = None
) -> list[RowMapping]:
    """All runs with a scheduler's job id, the latest first."""
    return of_ids(db, access, cluster, schema.job.c.jobid == jobid)


def of_ids(
    db: Connection, access: Access, cluster: str | None, *conditions: ColumnElement[bool]
) -> list[RowMapping]:
    """All runs that match these conditions on ids, the latest first."""
    job = schema.job.c
    # A subquery: combined with a condition on the user, SQLite without statistics would prefer the
    # index by user name.
    clusters = clusters_to_query(db, cluster)  # the indexes of ids start with the cluster
    found = sa.select(job.id).where(job.cluster.in_(clusters), *conditions)
    query = (
        sa.select(job.id)
        .where(job.id.in_(found), visible(access))
        .order_by(job.submit_time.desc(), job.run.desc())
        .limit(MAX_PAGE_ROWS)
    )
    return selected_rows(db, query)


def parts_of(db: Connection, access: Access, job_id: int) -> dict[str, list[RowMapping]] | None:
    """Nodes, steps, GPUs and emissions of a job; None if it may not be seen."""
    wanted = {"id": job_id}
    if db.scalar(_visible_id(access), wanted) is None:
        return None
    return {
        name: list(db.execute(query, wanted).mappings()) for name, query in _part_queries().items()
    }


@cached_by_access
def _visible_id(access: Access) -> sa.Select[int]:
    return sa.select(schema.job.c.id).where(schema.job.c.id == sa.bindparam("id"), visible(access))


@functools.cache
def _part_queries() -> Mapping[str, sa.Select[Any]]:
    tables = {
        "nodes": schema.job_node,
        "steps": schema.job_step,
        "gpus": schema.job_gpu,
        "emissions": schema.job_emissions,
    }
    return {
        name: sa.select(table)
        .where(table.c.job_id == sa.bindparam("id"))
        .order_by(*table.primary_key)
        for name, table in tables.items()
    }


def count(db: Connection, access: Access, which: Filter, most: int = 10_000) -> int:
    """The number of jobs, counted up to `most`: a larger number means "more than"."""
    job = schema.job
    source: Any = job
    start: ColumnElement[Any] = job.c.start_time
    if which.node is not None:
        source = schema.job_node.join(job)
        start = schema.job_node.c.start_time
    some = (
        sa.select(job.c.id)
        .select_from(source.outerjoin(schema.job_usage, schema.job_usage.c.job_id == job.c.id))
        .where(visible(access), *index_conditions(which, start), *row_conditions(which))
        .limit(most)
        .subquery()
    )
    return db.execute(sa.select(sa.func.count()).select_from(some)).scalar() or 0
