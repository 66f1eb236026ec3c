"""Sums of use over days, from the daily sums."""

from collections.abc import Sequence
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db import schema
from batchjob_stats_db.access import Access, visible

By = Literal["cluster", "account", "username", "day"]


def summed(
    db: Connection,
    access: Access,
    by: Sequence[By],
    since: int,
    until: int,
    *,
    cluster: str | None = None,
    account: str | None = None,
    user: str | None = None,
) -> list[RowMapping]:
    """Sums of the days that begin in [since, until), one row per value of `by`."""
    table = schema.daily_usage
    keys = [table.c[name] for name in by]
    query = (
        sa.select(*keys, *(sa.func.sum(table.c[name]).label(name) for name in schema.DAILY_SUMS))
        .where(*_chosen(table, access, since, until, cluster, account, user))
        .group_by(*keys)
        .order_by(*keys)
    )
    return list(db.execute(query).mappings())


def emissions(
    db: Connection,
    access: Access,
    by: Sequence[By],
    since: int,
    until: int,
    *,
    cluster: str | None = None,
    account: str | None = None,
    user: str | None = None,
) -> list[RowMapping]:
    """Grams by provider, one row per provider and value of `by`; providers are never added up."""
    table = schema.daily_emissions
    keys = [*(table.c[name] for name in by), table.c.provider]
    query = (
        sa.select(*keys, sa.func.sum(table.c.grams).label("grams"))
        .where(*_chosen(table, access, since, until, cluster, account, user))
        .group_by(*keys)
        .order_by(*keys)
    )
    return list(db.execute(query).mappings())


def _chosen(
    table: sa.Table,
    access: Access,
    since: int,
    until: int,
    cluster: str | None,
    account: str | None,
    user: str | None,
) -> list[sa.ColumnElement[bool]]:
    conditions = [visible(access, table), table.c.day >= since, table.c.day < until]
    for column, value in (
        (table.c.cluster, cluster),
        (table.c.account, account),
        (table.c.username, user),
    ):
        if value is not None:
            conditions.append(column == value)
    return conditions
