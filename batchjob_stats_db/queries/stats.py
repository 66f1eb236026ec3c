"""Numbers about the whole: clusters, states, users, accounts."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db import schema
from batchjob_stats_db.access import Access, visible


def clusters(db: Connection) -> list[RowMapping]:
    """All clusters, with how their sources were last read. There is nothing personal in it."""
    state = schema.poll_state
    query = (
        sa.select(schema.cluster, state.c.source, state.c.success_time, state.c.error_time)
        .select_from(schema.cluster.outerjoin(state, state.c.cluster == schema.cluster.c.name))
        .order_by(schema.cluster.c.name, state.c.source)
    )
    return list(db.execute(query).mappings())


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
    return list(db.execute(query).mappings())


def users(
    db: Connection, access: Access, since: int, until: int, cluster: str | None = None
) -> list[RowMapping]:
    """Who had jobs on the days that begin in [since, until), with their accounts."""
    daily = schema.daily_usage.c
    query = (
        sa.select(daily.cluster, daily.username, daily.account)
        .where(visible(access, schema.daily_usage), daily.day >= since, daily.day < until)
        .distinct()
        .order_by(daily.cluster, daily.username, daily.account)
    )
    if cluster is not None:
        query = query.where(daily.cluster == cluster)
    return list(db.execute(query).mappings())


def accounts(
    db: Connection, access: Access, since: int, until: int, cluster: str | None = None
) -> list[RowMapping]:
    """Which accounts had jobs on the days that begin in [since, until), and what they are."""
    daily, account = schema.daily_usage.c, schema.account
    about = account.c
    query = (
        sa.select(daily.cluster, daily.account, about.parent)
        .select_from(
            schema.daily_usage.outerjoin(
                account, (about.cluster == daily.cluster) & (about.account == daily.account)
            )
        )
        .where(visible(access, schema.daily_usage), daily.day >= since, daily.day < until)
        .distinct()
        .order_by(daily.cluster, daily.account)
    )
    if cluster is not None:
        query = query.where(daily.cluster == cluster)
    return list(db.execute(query).mappings())
