"""How long jobs of a partition waited on each of the last days."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.engine import Connection

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import stats
from batchjob_stats_server.pages.rendering import template_filters
from batchjob_stats_server.pages.rendering.charts import BarSegment, DayChart, day_chart

_DAYS = 30
_SEGMENTS = (BarSegment("median", "main"), BarSegment("median to 90th percentile", "rest"))


class WaitHistory(NamedTuple):
    """The waits of one partition, and the names of the others."""

    partition: str
    partitions: Sequence[str]
    chart: DayChart | None  # None: too few jobs started


def wait_history(
    db: Connection, access: Access, cluster: str, partition: str | None, now: int
) -> WaitHistory | None:
    """The last 30 days; None if no job started.

    Days with few jobs are included only for callers who may see all jobs of the cluster.
    """
    since = day_of(now) - (_DAYS - 1) * DAY
    partitions = stats.busiest_partitions(db, cluster, since)
    if not partitions:
        return None
    shown_partition = partition if partition in partitions else partitions[0]
    minimum = {"least_jobs": 1} if access.sees_all(cluster) else {}
    wait_rows = stats.waits_by_day(db, cluster, shown_partition, since, **minimum)
    waits_by_day = {
        row["day"]: (row["wait_p50_seconds"], row["wait_p90_seconds"] - row["wait_p50_seconds"])
        for row in wait_rows
    }
    rows = [
        (day, waits_by_day.get(day, (0.0, 0.0))) for day in range(since, since + _DAYS * DAY, DAY)
    ]
    longest_seconds = max((sum(values) for _, values in rows), default=0.0)
    unit = next((unit for unit in (DAY, 3600, 60) if longest_seconds > 2 * unit), 1)
    chart = day_chart("Wait", _SEGMENTS, rows, template_filters.duration, unit)
    return WaitHistory(shown_partition, partitions, chart)
