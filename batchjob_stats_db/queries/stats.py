"""Numbers about the whole: clusters, states, users, accounts."""

from itertools import accumulate
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.usage import kept

_USUAL_DAYS = 30
_USUAL_JOBS = 10  # of fewer, a median would tell of single jobs


def clusters(db: Connection) -> list[RowMapping]:
    """All clusters, with how their sources were last read. There is nothing personal in it."""
    state = schema.poll_state
    of_source = (state.c.cluster == schema.cluster.c.name) & state.c.source.not_like("%.reread")
    query = (
        sa.select(schema.cluster, state.c.source, state.c.success_time, state.c.error_time)
        .select_from(schema.cluster.outerjoin(state, of_source))
        .order_by(schema.cluster.c.name, state.c.source)
    )
    return list(db.execute(query).mappings().all())


def unfinished_by_state(
    db: Connection, access: Access, cluster: str | None = None
) -> list[RowMapping]:
    """How many jobs wait, run and are suspended, by cluster."""
    job = schema.job.c
    query = (
        sa.select(job.cluster, job.state, sa.func.count().label("jobs"))
        .where(job.end_time.is_(None), visible(access))
        .group_by(job.cluster, job.state)
        .order_by(job.cluster, job.state)
    )
    if cluster is not None:
        query = query.where(job.cluster == cluster)
    return list(db.execute(query).mappings().all())


def queues(db: Connection, cluster: str) -> list[RowMapping]:
    """Jobs and their resources of each partition that run and that wait, without whose they are.

    It is told to everybody, as the scheduler tells everybody the state of its queues.
    """
    job = schema.job.c
    runs = job.state.in_(("RUNNING", "SUSPENDED"))
    waits = job.state == "PENDING"

    def total(column: ColumnElement[Any], which: ColumnElement[bool]) -> ColumnElement[Any]:
        return sa.func.coalesce(sa.func.sum(sa.case((which, column))), 0)

    query = (
        sa.select(
            job.partition,
            sa.func.count(sa.case((runs, 1))).label("running"),
            total(job.allocated_nodes, runs).label("nodes"),
            total(job.allocated_cpus, runs).label("cpus"),
            total(job.allocated_gpus, runs).label("gpus"),
            sa.func.count(sa.case((waits, 1))).label("waiting"),
            total(job.requested_cpus, waits).label("waiting_cpus"),
            total(job.requested_gpus, waits).label("waiting_gpus"),
        )
        .where(job.cluster == cluster, job.end_time.is_(None), runs | waits)
        .group_by(job.partition)
        .order_by(job.partition)
    )
    return list(db.execute(query).mappings().all())


def users(
    db: Connection, access: Access, since: int, until: int, cluster: str | None = None
) -> list[RowMapping]:
    """Who had jobs on the days that begin in [since, until), with their accounts."""
    names = ("cluster", "username", "account")
    rows = kept(db, schema.USAGE, access, names, since, until, cluster=cluster).subquery().c
    query = sa.select(*rows).distinct().order_by(*rows)
    return list(db.execute(query).mappings().all())


def accounts(
    db: Connection, access: Access, since: int, until: int, cluster: str | None = None
) -> list[RowMapping]:
    """Which accounts had jobs on the days that begin in [since, until), and what they are."""
    names = ("cluster", "account")
    rows = kept(db, schema.USAGE, access, names, since, until, cluster=cluster).subquery()
    about = schema.account.c
    query = (
        sa.select(*rows.c, about.parent, about.limits)
        .select_from(
            rows.outerjoin(
                schema.account,
                (about.cluster == rows.c.cluster) & (about.account == rows.c.account),
            )
        )
        .distinct()
        .order_by(*rows.c)
    )
    return list(db.execute(query).mappings().all())


def usual_wait(db: Connection, cluster: str, partition: str, now: int) -> float | None:
    """Seconds that jobs of a partition waited in the last 30 days; None after too few jobs.

    The median of the days' medians, each weighted with the jobs of its day. It is told to
    everybody, as the scheduler tells everybody the state of its queues.
    """
    waits = schema.daily_wait.c
    rows = db.execute(
        sa.select(waits.wait_p50_seconds, waits.jobs_started)
        .where(
            waits.cluster == cluster, waits.partition == partition,
            waits.day >= now - _USUAL_DAYS * DAY,
        )
        .order_by(waits.wait_p50_seconds)
    ).all()  # fmt: skip
    jobs = sum(row.jobs_started for row in rows)
    if jobs < _USUAL_JOBS:
        return None
    reached = accumulate(row.jobs_started for row in rows)
    return next(
        float(row.wait_p50_seconds)
        for row, count in zip(rows, reached, strict=True)
        if count * 2 >= jobs
    )


def waits_by_day(
    db: Connection, cluster: str, partition: str, since: int, least_jobs: int = _USUAL_JOBS
) -> list[RowMapping]:
    """Waits of a partition's jobs on the days from then on, of days on which so many started.

    With the usual least number it tells of no single job, and is for everybody.
    """
    waits = schema.daily_wait.c
    query = (
        sa.select(waits.day, waits.jobs_started, waits.wait_p50_seconds, waits.wait_p90_seconds)
        .where(
            waits.cluster == cluster, waits.partition == partition, waits.day >= since,
            waits.jobs_started >= least_jobs,
        )
        .order_by(waits.day)
    )  # fmt: skip
    return list(db.execute(query).mappings().all())


def partitions(db: Connection, cluster: str, since: int) -> list[str]:
    """Partitions in which jobs started on the days from then on, the busiest first."""
    waits = schema.daily_wait.c
    query = (
        sa.select(waits.partition)
        .where(waits.cluster == cluster, waits.day >= since)
        .group_by(waits.partition)
        .order_by(sa.func.sum(waits.jobs_started).desc(), waits.partition)
    )
    return list(db.scalars(query))
