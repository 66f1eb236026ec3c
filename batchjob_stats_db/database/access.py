"""Which jobs a person may see. Every query takes an Access."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema


class UserOn(NamedTuple):
    """A login on a cluster, and the period in which it belongs to this person.

    Different people may have the same login on two clusters, and logins are reused when people
    leave.
    """

    cluster: str  # "" for all clusters
    user: str
    since: int | None = None  # only jobs submitted from this time on
    until: int | None = None  # only jobs submitted before this time


_FEW = 8


class AccountOn(NamedTuple):
    """An account on a cluster."""

    cluster: str
    account: str


class Access(NamedTuple):
    """What a person may see: own jobs, those of coordinated accounts or whole clusters, or all."""

    users: tuple[UserOn, ...] = ()
    accounts: tuple[AccountOn, ...] = ()
    everything: bool = False
    clusters: tuple[str, ...] = ()  # clusters on which all jobs may be seen

    def by_person(self) -> bool:
        """Whether only rows with a user can show what may be seen."""
        return bool(self.users) and not self.everything

    def sees_all(self, cluster: str) -> bool:
        """Whether all jobs of the cluster may be seen."""
        return self.everything or cluster in self.clusters

    def dated(self) -> bool:
        """Whether one of its logins is limited to a period."""
        times = (time for login in self.users for time in (login.since, login.until))
        return not self.everything and any(time is not None for time in times)

    def few(self) -> bool:
        """Whether it has so few logins that a query for each of them is cheap."""
        return len(self.users) + len(self.accounts) + len(self.clusters) <= _FEW


NOTHING = Access()
EVERYTHING = Access(everything=True)


def visible(access: Access, table: sa.FromClause = schema.job) -> ColumnElement[bool]:
    """The condition on `job`, or on a table with its cluster, username and account columns."""
    return sa.or_(sa.false(), *terms(access, table))


def terms(
    access: Access, table: sa.FromClause = schema.job, cluster: str | None = None
) -> list[ColumnElement[bool]]:
    """The same in parts, each a range of an index; with `cluster`, only its parts.

    No database finds the newest 50 of "mine, or of one of these accounts" with two indexes at once.
    """
    column = table.c
    here = sa.true() if cluster is None else column.cluster == cluster
    if access.everything:
        return [here]
    allowed: list[ColumnElement[bool]] = []
    for own in access.users:
        if cluster is not None and own.cluster not in ("", cluster):
            continue
        mine: ColumnElement[bool] = here & (column.username == own.user)
        if own.cluster:
            mine &= column.cluster == own.cluster
        if own.since is not None:
            mine &= _time(column) >= own.since
        if own.until is not None:
            mine &= _time(column) < own.until
        allowed.append(mine)
    allowed += [
        (column.cluster == each.cluster) & (column.account == each.account)
        for each in access.accounts
        if cluster is None or each.cluster == cluster
    ]
    allowed += [
        column.cluster == each for each in access.clusters if cluster is None or each == cluster
    ]
    return allowed


def _time(column: Any) -> ColumnElement[int]:
    found: ColumnElement[int] = column.submit_time if "submit_time" in column else column.day
    return found


LEVELS = ("operator", "administrator")
"""Slurm's AdminLevel, lowest first: each may do what those before it may."""


_association = schema.association.c
_RIGHTS = sa.select(_association.cluster, _association.account, _association.role).where(
    _association.username == sa.bindparam("user"),
    _association.role != "member",
)
_TREE = sa.select(schema.account.c.cluster, schema.account.c.account, schema.account.c.parent)


def of_user(
    db: Connection,
    user: str,
    cluster: str = "",
    level: str = "",
    accounts: Iterable[AccountOn] = (),
) -> Access:
    """What a user may see according to the schedulers: own jobs, and those of coordinated accounts.

    `level`: users with this AdminLevel of Slurm or a higher one see all jobs of its cluster.
    `accounts`: further accounts whose jobs the user may see as a coordinator would.
    """
    rights = [row for row in db.execute(_RIGHTS, {"user": user}) if cluster in ("", row.cluster)]
    found = {AccountOn(row.cluster, row.account) for row in rights if row.role == "coordinator"}
    found |= {each for each in accounts if cluster in ("", each.cluster)}
    # A coordinator of an account also coordinates the accounts below it (sacctmgr(1)).
    rows = db.execute(_TREE).all() if found else []
    grown = True
    while grown:
        below = {
            AccountOn(row.cluster, row.account)
            for row in rows
            if AccountOn(row.cluster, row.parent) in found
        }
        grown = not below <= found
        found |= below
    enough = LEVELS[LEVELS.index(level) :] if level else ()
    whole = {row.cluster for row in rights if row.account == "" and row.role in enough}
    return Access((UserOn(cluster, user),), tuple(sorted(found)), clusters=tuple(sorted(whole)))
