"""How long jobs of a partition waited on the last days."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.engine import Connection

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import stats
from batchjob_stats_server.pages.rendering import template_filters
from batchjob_stats_server.pages.rendering.charts import BarSegment, DayChart, day_chart

_DAYS = 30
_PARTS = (BarSegment("median", "main"), BarSegment("median to 90th percentile", "rest"))


class WaitHistory(NamedTuple):
    """The waits of one partition, and the names of the others."""

    partition: str
    partitions: Sequence[str]
    chart: DayChart | None  # None: too few jobs started


def wait_history(
    db: Connection, access: Access, cluster: str, partition: str | None, now: int
) -> WaitHistory | None:
    """The last 30 days; None if no job started.

    Days with few jobs are only for those who may see these.
    """
    since = day_of(now) - (_DAYS - 1) * DAY
    known = stats.partitions(db, cluster, since)
    if not known:
        return None
    shown = partition if partition in known else known[0]
    least = {"least_jobs": 1} if access.sees_all(cluster) else {}
    found = stats.waits_by_day(db, cluster, shown, since, **least)
    waited = {
        row["day"]: (row["wait_p50_seconds"], row["wait_p90_seconds"] - row["wait_p50_seconds"])
        for row in found
    }
    rows = [(day, waited.get(day, (0.0, 0.0))) for day in range(since, since + _DAYS * DAY, DAY)]
    longest = max((sum(values) for _, values in rows), default=0.0)
    unit = next((unit for unit in (DAY, 3600, 60) if longest > 2 * unit), 1)
    chart = day_chart("Wait", _PARTS, rows, template_filters.lasting, unit)
    return WaitHistory(shown, known, chart)
