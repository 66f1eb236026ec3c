"""Sums of usage over days, from whole months and the days around them."""

import functools
from collections.abc import Collection, Sequence
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING, Access, cached_by_access, visible
from batchjob_stats_db.days import whole_months
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_db.queries.job_list import TooManyError

By = Literal["cluster", "account", "username", "day"]


MAX_ROWS = 20_000
"""Maximum rows of an answer: a row in Python and its JSON take 2 kB of memory."""


def sum_usage(
    db: Connection,
    access: Access,
    by: Sequence[By],
    since: int,
    until: int,
    *,
    cluster: str | None = None,
    account: str | None = None,
    user: str | None = None,
    columns: Sequence[str] = (),
    most: int | None = None,
    sums: schema.Sums = schema.USAGE,
) -> list[RowMapping]:
    """Sums of the days that begin in [since, until), one row per value of `by`.

    `columns`: only these. Raises TooManyError if there are more than `most` rows.
    """
    query = _sum_query(
        access, sums, (*by, *sums.keys), tuple(columns or sums.columns),
        tuple(cluster_names(db, cluster)), since, until, account, user, most,
    )  # fmt: skip
    found = list(db.execute(query).mappings().all())
    if most is not None and len(found) > most:
        raise TooManyError(
            f"the answer would have more than {most} rows; request fewer days or fewer keys"
        )
    return found


sum_emissions = functools.partial(sum_usage, sums=schema.EMISSIONS)
"""Grams by provider, one row per provider and value of `by`; providers are never added up."""


@cached_by_access
def _sum_query(
    access: Access, sums: schema.Sums, by: tuple[str, ...], columns: tuple[str, ...],
    clusters: tuple[str, ...], since: int, until: int, account: str | None, user: str | None,
    most: int | None,
) -> sa.Select[Any]:  # fmt: skip
    """Sums by key; one row more than permitted, to detect that there are too many."""
    each = stored_rows(access, sums, (*by, *columns), clusters, since, until, account, user)
    rows = each.subquery().c
    groups = [rows[name] for name in by]
    added = (sa.func.sum(rows[name]).label(name) for name in columns)
    query = sa.select(*groups, *added).group_by(*groups).order_by(*groups)
    return query if most is None else query.limit(most + 1)


def stored_rows(
    access: Access, sums: schema.Sums, names: tuple[str, ...], clusters: tuple[str, ...],
    since: int, until: int, account: str | None = None, user: str | None = None,
) -> sa.CompoundSelect[Any]:  # fmt: skip
    """These columns of the stored sums of the days that begin in [since, until).

    The clusters to read are named, since the keys of the tables begin with the cluster.
    """
    wanted = {"account": account, "username": user}
    equal = {name: value for name, value in wanted.items() if value is not None}
    if set(clusters) <= set(access.clusters):
        access = EVERYTHING  # on these clusters, which the query names
    return sa.union_all(
        *(
            sa.select(*(table.c[name] for name in names))
            .where(table.c.cluster.in_(clusters), when >= begin, when < end, visible(access, table))
            .where(*(table.c[name] == value for name, value in equal.items()))
            for table, when, begin, end in _tables_to_read(
                sums, access, {*names, *equal}, since, until
            )
        )
    )


_TablePeriod = tuple[sa.Table, sa.Column[int], int, int]
"""A table, its column of days or months, and the first one and the one after the last."""


def _tables_to_read(
    sums: schema.Sums, access: Access, names: Collection[str], since: int, until: int
) -> list[_TablePeriod]:
    """The tables to read: of those with these columns, the ones with the fewest rows."""
    if "username" in names or (access.users and not access.everything):
        days, months = sums.by_user, sums.monthly_by_user
    elif "account" in names or not access.everything:
        days, months = sums.by_account, sums.monthly_by_account
    else:
        return [(sums.by_day, sums.by_day.c.day, since, until)]
    day = days.c.day
    first, last = whole_months(since, until)
    if "day" in names or first == last:
        return [(days, day, since, until)]
    parts = (
        (days, day, since, first),
        (months, months.c.month, first, last),
        (days, day, last, until),
    )
    return [part for part in parts if part[2] < part[3]]
