"""Nodes: which ones a job had, and which jobs a node has."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db import schema
from batchjob_stats_db.access import Access, visible


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
    return list(db.execute(query).mappings())


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
    return list(db.execute(query).mappings())
