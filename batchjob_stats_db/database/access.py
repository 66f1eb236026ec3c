"""Which jobs a person may see. Every query takes an Access."""

import functools
from collections.abc import Callable, Iterable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import read_if_changed


class ClusterLogin(NamedTuple):
    """A login on a cluster: different people may have the same login on two clusters."""

    cluster: str  # "" for all clusters
    user: str


_FEW_TERMS = 8


class ClusterAccount(NamedTuple):
    """An account on a cluster."""

    cluster: str
    account: str


class Access(NamedTuple):
    """What a person may see: own jobs, those of coordinated accounts or whole clusters, or all."""

    users: tuple[ClusterLogin, ...] = ()
    accounts: tuple[ClusterAccount, ...] = ()
    everything: bool = False
    clusters: tuple[str, ...] = ()  # clusters on which all jobs may be seen

    def sees_all(self, cluster: str) -> bool:
        """Whether all jobs of the cluster may be seen."""
        return self.everything or cluster in self.clusters

    def is_small(self) -> bool:
        """Whether it has so few logins, accounts and clusters that a query for each is cheap."""
        return len(self.users) + len(self.accounts) + len(self.clusters) <= _FEW_TERMS


NOTHING = Access()
EVERYTHING = Access(everything=True)


P = ParamSpec("P")
T = TypeVar("T")


def cached_by_access(
    build: Callable[Concatenate[Access, P], T],
) -> Callable[Concatenate[Access, P], T]:
    """Cache the latest results of a function that builds statements; arguments must be hashable.

    SQLAlchemy builds most of them more slowly than SQLite runs them. Users who may see many
    accounts have long statements, which are built each time.
    """
    build_cached = cast(Callable[Concatenate[Access, P], T], functools.lru_cache(256)(build))

    def built(access: Access, /, *given: P.args, **named: P.kwargs) -> T:
        return (build_cached if access.is_small() else build)(access, *given, **named)

    return built


def visible(access: Access, table: sa.FromClause = schema.job) -> ColumnElement[bool]:
    """The condition on `job`, or on a table with its cluster, username and account columns."""
    return sa.or_(sa.false(), *visibility_terms(access, table))


def visibility_terms(
    access: Access, table: sa.FromClause = schema.job, cluster: str | None = None
) -> list[ColumnElement[bool]]:
    """The same as conditions to be combined with OR; with `cluster`, only those of this cluster.

    Each is a range of an index. No database finds the newest 50 jobs of "mine, or of one of these
    accounts" with two indexes at once.
    """
    column = table.c
    on_cluster = sa.true() if cluster is None else column.cluster == cluster
    if access.everything:
        return [on_cluster]
    allowed: list[ColumnElement[bool]] = []
    for login in access.users:
        if cluster is not None and login.cluster not in ("", cluster):
            continue
        own_jobs: ColumnElement[bool] = on_cluster & (column.username == login.user)
        if login.cluster:
            own_jobs &= column.cluster == login.cluster
        allowed.append(own_jobs)
    allowed += [
        (column.cluster == each.cluster) & (column.account == each.account)
        for each in access.accounts
        if cluster is None or each.cluster == cluster
    ]
    allowed += [
        column.cluster == each for each in access.clusters if cluster is None or each == cluster
    ]
    return allowed


LEVELS = ("operator", "administrator")
"""Slurm's AdminLevel, lowest first: each may do what those before it may."""


_association = schema.association.c
_ASSOCIATIONS_OF_USER = sa.select(
    _association.cluster, _association.account, _association.role
).where(_association.username == sa.bindparam("user"), _association.role != "member")
_ACCOUNT_TREE = sa.select(
    schema.account.c.cluster, schema.account.c.account, schema.account.c.parent
)


def of_user(
    db: Connection,
    user: str,
    cluster: str = "",
    level: str = "",
    accounts: Iterable[ClusterAccount] = (),
) -> Access:
    """What a user may see according to the schedulers: own jobs, and those of coordinated accounts.

    `level`: users with this AdminLevel of Slurm or a higher one see all jobs of its cluster.
    `accounts`: further accounts whose jobs the user may see as a coordinator would.
    """
    associations = [
        row
        for row in read_if_changed(db, _ASSOCIATIONS_OF_USER, user=user)
        if cluster in ("", row.cluster)
    ]
    coordinated = {
        ClusterAccount(row.cluster, row.account)
        for row in associations
        if row.role == "coordinator"
    }
    coordinated |= {each for each in accounts if cluster in ("", each.cluster)}
    # A coordinator of an account also coordinates the accounts below it (sacctmgr(1)).
    rows = db.execute(_ACCOUNT_TREE).all() if coordinated else []
    while (
        below := {
            ClusterAccount(row.cluster, row.account)
            for row in rows
            if (row.cluster, row.parent) in coordinated
        }
        - coordinated
    ):
        coordinated |= below
    sufficient_levels = LEVELS[LEVELS.index(level) :] if level else ()
    whole_clusters = {
        row.cluster for row in associations if row.account == "" and row.role in sufficient_levels
    }
    return Access(
        (ClusterLogin(cluster, user),),
        tuple(sorted(coordinated)),
        clusters=tuple(sorted(whole_clusters)),
    )


def coordinates(db: Connection, user: str, cluster: str, account: str) -> bool:
    """Whether a user coordinates an account, on a cluster or, without one, on any."""
    return any(
        each.account == account and cluster in ("", each.cluster)
        for each in of_user(db, user, cluster).accounts
    )
