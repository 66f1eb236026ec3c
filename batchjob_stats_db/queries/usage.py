"""Sums of use over days, made of whole months and the days around them."""

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING, Access, visible
from batchjob_stats_db.days import whole_months
from batchjob_stats_db.queries.clusters import known_clusters

By = Literal["cluster", "account", "username", "day"]


MOST = 20_000
"""Rows of an answer that is not to fill the memory: a row of Python and its JSON take 2 kB."""


class TooManyRowsError(ValueError):
    """An answer would have more rows than it may; the text says what would help."""


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
    columns: Sequence[str] = schema.DAILY_SUMS,
    most: int | None = None,
) -> list[RowMapping]:
    """Sums of the days that begin in [since, until), one row per value of `by`.

    Raises TooManyRowsError, where there is a limit.
    """
    rows = kept(
        db, schema.USAGE, access, (*by, *columns), since, until,
        cluster=cluster, account=account, user=user,
    )  # fmt: skip
    return _added_up(db, rows, by, columns, most)


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
    most: int | None = None,
) -> list[RowMapping]:
    """Grams by provider, one row per provider and value of `by`; providers are never added up.

    Raises TooManyRowsError, where there is a limit.
    """
    sums = schema.EMISSIONS
    names = (*by, *sums.keys)
    rows = kept(
        db, sums, access, (*names, *sums.columns), since, until,
        cluster=cluster, account=account, user=user,
    )  # fmt: skip
    return _added_up(db, rows, names, sums.columns, most)


def _added_up(
    db: Connection,
    each: sa.CompoundSelect[Any],
    by: Sequence[str],
    columns: Sequence[str],
    most: int | None,
) -> list[RowMapping]:
    rows = each.subquery().c
    groups = [rows[name] for name in by]
    added = (sa.func.sum(rows[name]).label(name) for name in columns)
    query = sa.select(*groups, *added).group_by(*groups).order_by(*groups)
    if most is not None:
        query = query.limit(most + 1)
    found = list(db.execute(query).mappings().all())
    if most is not None and len(found) > most:
        raise TooManyRowsError(
            f"the answer would have more than {most} rows; request fewer days or fewer keys"
        )
    return found


def kept(
    db: Connection,
    sums: schema.Sums,
    access: Access,
    names: Sequence[str],
    since: int,
    until: int,
    *,
    cluster: str | None = None,
    account: str | None = None,
    user: str | None = None,
) -> sa.CompoundSelect[Any]:
    """These columns of the rows that stand for the days that begin in [since, until)."""
    wanted = {"account": account, "username": user}
    equal = {name: value for name, value in wanted.items() if value is not None}
    clusters = known_clusters(db, cluster)  # the keys begin with it
    if set(clusters) <= set(access.clusters):
        access = EVERYTHING  # of these, whose names are asked for
    return sa.union_all(
        *(
            sa.select(*(table.c[name] for name in names))
            .where(table.c.cluster.in_(clusters), when >= begin, when < end, visible(access, table))
            .where(*(table.c[name] == value for name, value in equal.items()))
            for table, when, begin, end in _read(sums, access, {*names, *equal}, since, until)
        )
    )


class _Rows(NamedTuple):
    """Rows of a table whose day or month begins in [begin, end)."""

    table: sa.Table
    when: sa.Column[int]
    begin: int
    end: int


def _read(
    sums: schema.Sums, access: Access, names: Collection[str], since: int, until: int
) -> list[_Rows]:
    """What to read: of the tables that have these columns those with the fewest rows."""
    if "username" in names or access.by_person():
        days, months = sums.by_user, sums.monthly_by_user
    elif "account" in names or not access.everything:
        days, months = sums.by_account, sums.monthly_by_account
    else:
        return [_Rows(sums.by_day, sums.by_day.c.day, since, until)]
    day = days.c.day
    if "day" in names or access.dated():
        return [_Rows(days, day, since, until)]
    first, last = whole_months(since, until)
    if first == last:
        return [_Rows(days, day, since, until)]
    parts = (
        _Rows(days, day, since, first),
        _Rows(months, months.c.month, first, last),
        _Rows(days, day, last, until),
    )
    return [part for part in parts if part.begin < part.end]
