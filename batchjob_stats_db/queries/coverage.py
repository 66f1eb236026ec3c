"""What is known of how well a cluster is read and measured."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema

SHORT_SECONDS = 120  # a job that ends sooner may have ended between two scrapes


def coverage_by_node(db: Connection, cluster: str, since: int) -> list[RowMapping]:
    """Of jobs that ended since then, by node: how many, how many without any sample, coverage.

    The coverage (0..1) is a mean over run time; a job of several nodes counts on each of them.
    Short jobs and those that are still to be measured do not count.
    """
    job, share, usage = schema.job, schema.job_node, schema.job_usage
    # Of `job` itself only columns of indexes are used: to read its rows would take twice as long.
    seconds = job.c.end_time - share.c.start_time
    due = sa.select(job.c.id).where(job.c.cluster == cluster, job.c.usage_due_time.is_not(None))
    covered = sa.func.coalesce(usage.c.coverage, 0.0)
    unmeasured = sa.case((sa.func.coalesce(usage.c.samples, 0) == 0, 1), else_=0)
    query = (
        sa.select(
            share.c.node,
            sa.func.count().label("jobs"),
            sa.func.sum(unmeasured).label("unmeasured"),
            (sa.func.sum(covered * seconds) / sa.func.sum(seconds)).label("coverage"),
        )
        .select_from(job.join(share).outerjoin(usage, usage.c.job_id == job.c.id))
        .where(
            job.c.cluster == cluster, job.c.end_time >= since, seconds >= SHORT_SECONDS,
            job.c.id.not_in(due),
        )
        .group_by(share.c.node)
        .order_by("coverage", share.c.node)
    )  # fmt: skip
    return list(db.execute(query).mappings().all())


def polls(db: Connection, cluster: str) -> list[RowMapping]:
    """The cluster's sources: how each was last read, and how many of its rows were rejected."""
    state, rejected = schema.poll_state, schema.quarantine.c
    count = (
        sa.select(sa.func.count())
        .where(rejected.cluster == state.c.cluster, rejected.source == state.c.source)
        .scalar_subquery()
    )
    query = (
        sa.select(state, count.label("rejected"))
        .where(state.c.cluster == cluster)
        .order_by(state.c.source)
    )
    return list(db.execute(query).mappings().all())
