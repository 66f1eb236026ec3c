"""Sums of use over days: of whole months where they answer the question, else of days."""

from collections.abc import Sequence
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db import schema
from batchjob_stats_db.access import Access, visible
from batchjob_stats_db.days import month_after, month_of
from batchjob_stats_db.queries.clusters import known_clusters

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
    return _added_up(db, schema.USAGE, access, by, since, until, (cluster, account, user))


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
    return _added_up(db, schema.EMISSIONS, access, by, since, until, (cluster, account, user))


def _added_up(
    db: Connection,
    sums: schema.Sums,
    access: Access,
    by: Sequence[By],
    since: int,
    until: int,
    wanted: tuple[str | None, str | None, str | None],
) -> list[RowMapping]:
    """One sum of the sums of each table that is read."""
    names = (*by, *sums.keys)
    clusters = known_clusters(db, wanted[0])  # the indexes begin with it
    pieces = []
    for time, begin, end in _read(sums, access, by, since, until, wanted):
        column = time.table.c
        keys = [column[name] for name in names]
        equal = zip(("account", "username"), wanted[1:], strict=True)
        pieces.append(
            sa.select(*keys, *(sa.func.sum(column[name]).label(name) for name in sums.columns))
            .where(column.cluster.in_(clusters), visible(access, time.table))
            .where(time >= begin, time < end)
            .where(*(column[name] == value for name, value in equal if value is not None))
            .group_by(*keys)
        )
    rows = sa.union_all(*pieces).subquery().c
    groups = [rows[name] for name in names]
    query = sa.select(*groups, *(sa.func.sum(rows[name]).label(name) for name in sums.columns))
    return list(db.execute(query.group_by(*groups).order_by(*groups)).mappings())


def _read(
    sums: schema.Sums,
    access: Access,
    by: Sequence[By],
    since: int,
    until: int,
    wanted: tuple[str | None, str | None, str | None],
) -> list[tuple[sa.Column[int], int, int]]:
    """The columns of time to read, each in [begin, end): those with the fewest rows."""
    _, account, user = wanted
    if user is not None or "username" in by or access.by_person():
        day, month = sums.by_user.c.day, sums.by_user_month.c.month
    elif account is None and "account" not in by and access.everything:
        return [(sums.by_day.c.day, since, until)]
    else:
        day, month = sums.by_account.c.day, sums.by_month.c.month
    first, last = month_of(since), month_of(until)
    if first < since:
        first = month_after(first)
    if "day" in by or first >= last or access.dated():
        return [(day, since, until)]
    return [(day, since, first), (month, first, last), (day, last, until)]
