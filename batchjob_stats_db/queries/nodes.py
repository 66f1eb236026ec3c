"""The nodes of a job, and the jobs of a node."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob.judgements import RUNNING_STATES
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, cached_by_access, visible
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.efficiency import statement_column, with_figures
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_db.queries.job_list import COLUMN_NAMES, ColumnNames


class Neighbours(NamedTuple):
    """Other jobs on a node while a job ran: how many, and their period (epoch seconds)."""

    jobs: int
    since: float
    until: float


NO_NEIGHBOURS = Neighbours(0, 0, 0)
_MAX_NODES_WITH_NEIGHBOURS = 16

LOOKBACK_SECONDS = 60 * DAY
"""How long before a window a job may have started and still be found."""


def busy_nodes(db: Connection, access: Access, cluster: str) -> list[RowMapping]:
    return list(db.execute(_busy_nodes_query(access), {"cluster": cluster}).mappings().all())


@cached_by_access
def _busy_nodes_query(access: Access) -> sa.Select[Any]:
    job, share = schema.job, schema.job_node
    return (
        sa.select(share.c.node, sa.func.count().label("jobs"))
        .select_from(job.join(share))
        .where(
            job.c.cluster == sa.bindparam("cluster"),
            job.c.end_time.is_(None),
            job.c.state.in_(RUNNING_STATES),
            share.c.until_time.is_(None),
            visible(access),
        )
        .group_by(share.c.node)
        .order_by(share.c.node)
    )


def jobs_on_node(
    db: Connection, access: Access, cluster: str, node: str, since: int, until: int, most: int,
    names: ColumnNames = COLUMN_NAMES,
) -> list[RowMapping]:  # fmt: skip
    """Visible jobs that were on a node in [since, until), the latest start first.

    With their columns of these names; `share_cpus`, `share_memory_bytes` and `share_gpus` are their
    shares of the node.
    """
    parameters = {
        "cluster": cluster, "node": node, "since": since, "until": until,
        "begun_from": since - LOOKBACK_SECONDS, "most": most,
    }  # fmt: skip
    return list(db.execute(_jobs_on_node_query(access, names), parameters).mappings().all())


@cached_by_access
def _jobs_on_node_query(access: Access, names: ColumnNames) -> sa.Select[Any]:
    job, share, given = schema.job, schema.job_node, sa.bindparam
    shares = (share.c[name].label(f"share_{name}") for name in ("cpus", "memory_bytes", "gpus"))
    return (
        sa.select(*(statement_column(name) for name in COLUMN_NAMES if name in names), *shares)
        .select_from(with_figures(share.join(job, job.c.id == share.c.job_id)))
        .where(
            share.c.cluster == given("cluster"),
            share.c.node == given("node"),
            share.c.start_time < given("until"),
            share.c.start_time >= given("begun_from"),
            sa.func.coalesce(share.c.until_time, job.c.end_time, given("until")) >= given("since"),
            visible(access),
        )
        .order_by(share.c.start_time.desc(), share.c.job_id.desc())
        .limit(given("most"))
    )


def neighbours(db: Connection, job: Mapping[Any, Any], now: int) -> Mapping[str, Neighbours]:
    """Other jobs on the nodes of a job while it ran, of any user: counts and times alone.

    Only for the first nodes, since each is a range of an index.
    """
    start, end = job["start_time"], job["end_time"] or now
    if start is None:
        return {}
    parameters = {
        "id": job["id"], "cluster": job["cluster"], "now": now, "start": start, "end": end,
        "begun_from": start - LOOKBACK_SECONDS,
    }  # fmt: skip
    found = {}
    for name, until in db.execute(_NODES_OF, {"id": job["id"]}).all():
        last_here = until or end
        here = {**parameters, "node": name, "end": last_here}
        jobs, first, last = db.execute(_NEIGHBOURS, here).one()
        together = Neighbours(jobs, max(first, start), min(last, last_here)) if jobs else None
        found[name] = together or NO_NEIGHBOURS
    return found


_share, _other, _given = schema.job_node.c, schema.job.c, sa.bindparam
_NODES_OF = (
    sa.select(_share.node, _share.until_time)
    .where(_share.job_id == _given("id"))
    .order_by(_share.node)
    .limit(_MAX_NODES_WITH_NEIGHBOURS)
)
_until = sa.func.coalesce(_share.until_time, _other.end_time, _given("now"))
_NEIGHBOURS = (
    sa.select(sa.func.count(), sa.func.min(_share.start_time), sa.func.max(_until))
    .select_from(schema.job_node.join(schema.job, _other.id == _share.job_id))
    .where(
        _share.cluster == _given("cluster"), _share.node == _given("node"),
        _other.id != _given("id"), _share.start_time < _given("end"),
        _share.start_time >= _given("begun_from"), _until > _given("start"),
    )
)  # fmt: skip


def clusters_of(db: Connection, access: Access, node: str) -> list[str]:
    job, share = schema.job, schema.job_node
    jobs = sa.select(share.c.job_id).select_from(share.join(job, job.c.id == share.c.job_id))
    jobs = jobs.where(share.c.node == node, visible(access)).limit(1)
    return [
        cluster
        for cluster in cluster_names(db)
        if db.execute(jobs.where(share.c.cluster == cluster)).first()
    ]
