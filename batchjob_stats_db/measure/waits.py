"""How long jobs waited before they started: percentiles by day and partition.

A percentile is by nearest rank: the wait of a job that this fraction of the jobs did not exceed.
Percentiles of days cannot be combined into one of a month, so those of days are stored, and never
added up.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY, midnight
from batchjob_stats_db.queries.efficiency import wait_seconds

_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


def waits(*which: ColumnElement[bool]) -> sa.Select[Any]:
    """Waits of started jobs under these conditions, with the columns of `daily_wait`."""
    job = schema.job.c
    waited = wait_seconds(job)
    day = midnight(job.start_time).label("day")
    group_key = (job.cluster, day, job.partition)
    each = (
        sa.select(
            *group_key,
            waited.label("wait"),
            sa.func.row_number().over(partition_by=group_key, order_by=waited).label("rank"),
            sa.func.count().over(partition_by=group_key).label("jobs_started"),
        )
        .where(job.start_time.is_not(None), *which)
        .subquery()
        .c
    )
    percentiles = {
        name: sa.func.min(sa.case((each.rank * 100 >= each.jobs_started * share, each.wait)))
        for name, share in _PERCENTILES.items()
    }
    statistics = {"mean": sa.func.avg(each.wait), **percentiles, "max": sa.func.max(each.wait)}
    groups = (each.cluster, each.day, each.partition)
    return (
        sa.select(
            *groups,
            sa.func.max(each.jobs_started).label("jobs_started"),
            *(
                sa.cast(statistics[name], sa.Float).label(f"wait_{name}_seconds")
                for name in schema.WAITS
            ),
        )
        .group_by(*groups)
        .order_by(*groups)
    )


def add_waits(db: Connection, cluster: str, day: int) -> None:
    """Write the waits of the jobs that started on a day."""
    job, table = schema.job.c, schema.daily_wait
    rows = waits(job.cluster == cluster, job.start_time >= day, job.start_time < day + DAY)
    names = [column.name for column in table.columns]
    db.execute(sa.insert(table).from_select(names, rows))
