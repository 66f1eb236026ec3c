"""Nodes: which ones a job had, and which jobs a node has."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.clusters import known_clusters
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_db.queries.job_rows import NAMES, Names


class Neighbours(NamedTuple):
    """How many other jobs were on a node while a job ran, from when to when (epoch seconds)."""

    jobs: int
    since: float
    until: float


NOBODY = Neighbours(0, 0, 0)

LONGEST_RUN = 60 * DAY
"""How long before a window a job may have started and still be looked for."""


def running_on(db: Connection, access: Access, cluster: str, node: str) -> list[RowMapping]:
    """The jobs that run on a node now and may be seen."""
    job, share = schema.job, schema.job_node
    query = (
        sa.select(job, share.c.cpus, share.c.memory_bytes, share.c.gpus)
        .select_from(job.join(share))
        .where(
            share.c.cluster == cluster,
            share.c.node == node,
            job.c.end_time.is_(None),
            job.c.state.in_(("RUNNING", "SUSPENDED")),
            visible(access),
        )
        .order_by(job.c.start_time.desc(), job.c.id.desc())
    )
    return list(db.execute(query).mappings().all())


def busy(db: Connection, access: Access, cluster: str) -> list[RowMapping]:
    """Nodes with jobs that run now and may be seen, with the number of these."""
    job, share = schema.job, schema.job_node
    query = (
        sa.select(share.c.node, sa.func.count().label("jobs"))
        .select_from(job.join(share))
        .where(
            job.c.cluster == cluster,
            job.c.end_time.is_(None),
            job.c.state.in_(("RUNNING", "SUSPENDED")),
            visible(access),
        )
        .group_by(share.c.node)
        .order_by(share.c.node)
    )
    return list(db.execute(query).mappings().all())


def stays(
    db: Connection, access: Access, cluster: str, node: str, since: int, until: int, most: int,
    names: Names = NAMES,
) -> list[RowMapping]:  # fmt: skip
    """Jobs that were on a node in [since, until) and may be seen, the latest to start first.

    With their columns of these names; `share_cpus`, `share_memory_bytes` and `share_gpus` are what
    they had there.
    """
    job, share = schema.job, schema.job_node
    shares = (share.c[name].label(f"share_{name}") for name in ("cpus", "memory_bytes", "gpus"))
    query = (
        sa.select(*(column for column in columns() if column.name in names), *shares)
        .select_from(share.join(job, job.c.id == share.c.job_id).outerjoin(schema.job_usage))
        .where(
            share.c.cluster == cluster,
            share.c.node == node,
            share.c.start_time < until,
            share.c.start_time >= since - LONGEST_RUN,
            sa.or_(job.c.end_time.is_(None), job.c.end_time >= since),
            visible(access),
        )
        .order_by(share.c.start_time.desc(), share.c.job_id.desc())
        .limit(most)
    )
    return list(db.execute(query).mappings().all())


def neighbours(
    db: Connection, job: Mapping[Any, Any], now: int, most_nodes: int = 16
) -> Mapping[str, Neighbours]:
    """Other jobs on the nodes of a job while it ran, whoever may see them: counts and times alone.

    Of the first so many nodes, as each is a range of its own to be read.
    """
    start, end = job["start_time"], job["end_time"] or now
    if start is None:
        return {}
    own, share, other = schema.job_node.alias(), schema.job_node, schema.job
    names = sa.select(own.c.node).where(own.c.job_id == job["id"]).order_by(own.c.node)
    found = {}
    for name in db.scalars(names.limit(most_nodes)):
        until = sa.func.coalesce(other.c.end_time, now)
        query = sa.select(
            sa.func.count(), sa.func.min(share.c.start_time), sa.func.max(until)
        ).select_from(share.join(other, other.c.id == share.c.job_id)).where(
            share.c.cluster == job["cluster"], share.c.node == name, other.c.id != job["id"],
            share.c.start_time < end, share.c.start_time >= start - LONGEST_RUN, until > start,
        )  # fmt: skip
        jobs, first, last = db.execute(query).one()
        found[name] = Neighbours(jobs, max(first, start), min(last, end)) if jobs else NOBODY
    return found


def clusters_of(db: Connection, access: Access, node: str) -> list[str]:
    """Clusters on which a node of this name had a job that may be seen."""
    job, share = schema.job, schema.job_node
    return [
        cluster
        for cluster in known_clusters(db, None)
        if db.execute(
            sa.select(share.c.job_id)
            .select_from(share.join(job, job.c.id == share.c.job_id))
            .where(share.c.cluster == cluster, share.c.node == node, visible(access))
            .limit(1)
        ).first()
    ]
