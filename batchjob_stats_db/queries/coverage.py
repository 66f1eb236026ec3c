"""How completely a cluster is read and measured."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema


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
    """The cluster's sources: when each was last read, and how many of its rows were rejected."""
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
