"""How much is measured of the jobs on each node: sums of the jobs that ended on a day.

They show whether a node's exporter works now, so older days are not kept.
"""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY, day_of

SHORT_SECONDS = 120
"""A job that ends sooner may have ended between two scrapes."""

_KEPT_DAYS = 2


def first_day(now: int) -> int:
    """The midnight of the first day with sums."""
    return day_of(now) - (_KEPT_DAYS - 1) * DAY


def add_node_coverage(db: Connection, cluster: str, day: int, now: int) -> None:
    """Write the sums of the jobs that ended on a day, unless it is too old, and delete old ones.

    Short jobs and those that have yet to be measured do not count. A job of several nodes counts on
    each of them.
    """
    table = schema.daily_node_coverage
    db.execute(sa.delete(table).where(table.c.cluster == cluster, table.c.day < first_day(now)))
    if day < first_day(now):
        return
    job, share, usage = schema.job, schema.job_node, schema.job_usage
    # Use only indexed columns of `job`: reading its rows would take twice as long.
    seconds = job.c.end_time - share.c.start_time
    due = sa.select(job.c.id).where(job.c.cluster == cluster, job.c.usage_due_time.is_not(None))
    unmeasured = sa.case((sa.func.coalesce(usage.c.samples, 0) == 0, 1), else_=0)
    covered = sa.func.coalesce(usage.c.coverage, 0.0)
    # In this join order, a job's usage is read before its nodes, and therefore only once.
    measured = job.outerjoin(usage, usage.c.job_id == job.c.id)
    rows = (
        sa.select(
            sa.literal(cluster),
            sa.literal(day, sa.BigInteger),
            share.c.node,
            sa.func.count(),
            sa.func.sum(unmeasured),
            sa.func.sum(seconds),
            sa.func.sum(covered * seconds),
        )
        .select_from(measured.join(share, share.c.job_id == job.c.id))
        .where(
            job.c.cluster == cluster, job.c.end_time >= day, job.c.end_time < day + DAY,
            seconds >= SHORT_SECONDS, job.c.id.not_in(due),
        )
        .group_by(share.c.node)
    )  # fmt: skip
    db.execute(sa.insert(table).from_select([column.name for column in table.columns], rows))
