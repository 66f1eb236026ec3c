"""Totals: clusters and how completely they are read, states, accounts with their members."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.judgements import RUNNING_STATES
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, cached_by_access, visible
from batchjob_stats_db.database.gate import RULES
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.rollup import LEAST_JOBS
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_db.queries.usage import stored_rows


def clusters(db: Connection) -> list[RowMapping]:
    """All clusters, with the state of their sources. It contains no personal data."""
    return list(db.execute(_CLUSTERS).mappings().all())


_state = schema.poll_state.c
_CLUSTERS = (
    sa.select(schema.cluster, _state.source, _state.success_time, _state.error_time)
    .select_from(
        schema.cluster.outerjoin(
            schema.poll_state,
            (_state.cluster == schema.cluster.c.name) & _state.source.not_like("%.reread"),
        )
    )
    .order_by(schema.cluster.c.name, _state.source)
)


def coverage_by_node(db: Connection, cluster: str, since: int) -> list[RowMapping]:
    """`jobs`, `unmeasured` and `coverage` by node, of jobs that ended since a midnight.

    `unmeasured` are jobs without any sample; the coverage (0..1) is a mean over run time.
    """
    daily = schema.daily_node_coverage.c
    query = (
        sa.select(
            daily.node,
            sa.func.sum(daily.jobs_ended).label("jobs"),
            sa.func.sum(daily.jobs_unmeasured).label("unmeasured"),
            (sa.func.sum(daily.covered_seconds) / sa.func.sum(daily.run_seconds)).label("coverage"),
        )
        .where(daily.cluster == cluster, daily.day >= since)
        .group_by(daily.node)
        .order_by("coverage", daily.node)
    )
    return list(db.execute(query).mappings().all())


def polls(db: Connection, cluster: str) -> list[RowMapping]:
    state = schema.poll_state
    query = sa.select(state).where(state.c.cluster == cluster).order_by(state.c.source)
    return list(db.execute(query).mappings().all())


def refusals(db: Connection, cluster: str) -> list[dict[str, Any]]:
    """What was refused of a source by each rule of the gate, and is still in quarantine."""
    bad = schema.quarantine.c
    number, last_time = sa.func.count().label("number"), sa.func.max(bad.time).label("last_time")
    query = (
        sa.select(bad.source, bad.rule, number, last_time)
        .where(bad.cluster == cluster)
        .group_by(bad.source, bad.rule)
        .order_by(bad.source, bad.rule)
    )
    rows = db.execute(query).mappings()
    return [{**row, "meaning": RULES.get(row["rule"], row["rule"])} for row in rows]


def unfinished_by_state(
    db: Connection, access: Access, cluster: str | None = None
) -> list[RowMapping]:
    return list(db.execute(_unfinished_by_state(access, cluster)).mappings().all())


@cached_by_access
def _unfinished_by_state(access: Access, cluster: str | None) -> sa.Select[Any]:
    job = schema.job.c
    query = (
        sa.select(job.cluster, job.state, sa.func.count().label("jobs"))
        .where(job.end_time.is_(None), visible(access))
        .group_by(job.cluster, job.state)
        .order_by(job.cluster, job.state)
    )
    return query if cluster is None else query.where(job.cluster == cluster)


def queued_by_partition(db: Connection, cluster: str) -> list[RowMapping]:
    """Running and waiting jobs of each partition and their resources, without their users.

    Everybody may see it, as schedulers show the state of their queues to everybody.
    """
    return list(db.execute(_QUEUES, {"cluster": cluster}).mappings().all())


_job = schema.job.c
_runs, _is_pending = _job.state.in_(RUNNING_STATES), _job.state == "PENDING"


def _total(column: ColumnElement[Any], which: ColumnElement[bool]) -> ColumnElement[Any]:
    return sa.func.coalesce(sa.func.sum(sa.case((which, column))), 0)


_QUEUES = (
    sa.select(
        _job.partition,
        sa.func.count(sa.case((_runs, 1))).label("running"),
        _total(_job.allocated_nodes, _runs).label("nodes"),
        _total(_job.allocated_cpus, _runs).label("cpus"),
        _total(_job.allocated_gpus, _runs).label("gpus"),
        sa.func.count(sa.case((_is_pending, 1))).label("waiting"),
        _total(_job.requested_cpus, _is_pending).label("waiting_cpus"),
        _total(_job.requested_gpus, _is_pending).label("waiting_gpus"),
    )
    .where(
        _job.cluster == sa.bindparam("cluster"), _job.end_time.is_(None),
        _job.state.in_((*RUNNING_STATES, "PENDING")),
    )
    .group_by(_job.partition)
    .order_by(_job.partition)
)  # fmt: skip


def accounts(
    db: Connection, access: Access, since: int, until: int, cluster: str | None = None
) -> list[RowMapping]:
    """Accounts with jobs on the days that begin in [since, until), and their descriptions."""
    names = ("cluster", "account")
    here = tuple(cluster_names(db, cluster))
    rows = stored_rows(access, schema.USAGE, names, here, since, until).subquery()
    accounts_table = schema.account.c
    query = (
        sa.select(*rows.c, accounts_table.parent, accounts_table.limits)
        .select_from(
            rows.outerjoin(
                schema.account,
                (accounts_table.cluster == rows.c.cluster)
                & (accounts_table.account == rows.c.account),
            )
        )
        .where(rows.c.account != "")  # of jobs without one, as where there is no accounting
        .distinct()
        .order_by(*rows.c)
    )
    return list(db.execute(query).mappings().all())


_waits = schema.daily_wait.c
_OF_CLUSTER = (_waits.cluster == sa.bindparam("cluster"), _waits.day >= sa.bindparam("since"))
_OF_PARTITION = (*_OF_CLUSTER, _waits.partition == sa.bindparam("partition"))
_WAITS_BY_DAY = (
    sa.select(_waits.day, _waits.jobs_started, _waits.wait_p50_seconds, _waits.wait_p90_seconds)
    .where(*_OF_PARTITION, _waits.jobs_started >= sa.bindparam("least"))
    .order_by(_waits.day)
)
_PARTITIONS = (
    sa.select(_waits.partition)
    .where(*_OF_CLUSTER)
    .group_by(_waits.partition)
    .order_by(sa.func.sum(_waits.jobs_started).desc(), _waits.partition)
)


def usual_waits(db: Connection, access: Access, cluster: str | None, now: int) -> list[RowMapping]:
    """Half of the jobs of the last 30 days waited no longer than this, and nine in ten than that.

    Of partitions everybody may see it, as schedulers show the state of their queues to everybody;
    of users and accounts, those who may see their jobs. Values older than a day are left out.
    """
    parameters = {"cluster": cluster, "since": now - DAY}
    return list(db.execute(_usual_waits(access), parameters).mappings().all())


@cached_by_access
def _usual_waits(access: Access) -> sa.Select[Any]:
    row, cluster = schema.usual_wait.c, sa.bindparam("cluster", type_=sa.Text)
    of_partition = (row.username == "") & (row.account == "")
    return (
        sa.select(schema.usual_wait)
        .where(row.cluster == sa.func.coalesce(cluster, row.cluster))
        .where(row.computed_time > sa.bindparam("since"))
        .where(of_partition | visible(access, schema.usual_wait))
        .order_by(*schema.usual_wait.primary_key)
    )


def waits_by_day(
    db: Connection, cluster: str, partition: str, since: int, least_jobs: int = LEAST_JOBS
) -> list[RowMapping]:
    """Waits of a partition's jobs by day, for days on which at least this many started.

    With the default minimum it does not reveal single jobs, and everybody may see it.
    """
    parameters = {"cluster": cluster, "partition": partition, "since": since, "least": least_jobs}
    return list(db.execute(_WAITS_BY_DAY, parameters).mappings().all())


def busiest_partitions(db: Connection, cluster: str, since: int) -> list[str]:
    """Partitions in which jobs started on the days from then on, the busiest first."""
    return list(db.scalars(_PARTITIONS, {"cluster": cluster, "since": since}))


class AccountRecord(NamedTuple):
    """An account in the scheduler's accounting, at the last reading."""

    parent: str
    limits: str
    below: Sequence[str]  # accounts whose parent it is
    members: Sequence[RowMapping]  # with username and role


def account_record(db: Connection, cluster: str, account: str) -> AccountRecord | None:
    accounts, associations = schema.account.c, schema.association.c
    here = accounts.cluster == cluster
    own = sa.select(accounts.parent, accounts.limits).where(here, accounts.account == account)
    row = db.execute(own).one_or_none()
    query = (
        sa.select(associations.username, associations.role)
        .where(associations.cluster == cluster, associations.account == account)
        .order_by(associations.role, associations.username)
    )
    members = db.execute(query).mappings().all()
    if row is None and not members:
        return None
    children = sa.select(accounts.account).where(here, accounts.parent == account)
    below = db.scalars(children.order_by(accounts.account)).all()
    return AccountRecord(row.parent if row else "", row.limits if row else "", below, members)
