"""What operators look for: waste, failures, waits, GPUs that are held and idle."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.measure.waits import waits
from batchjob_stats_db.queries import paging
from batchjob_stats_db.queries.clusters import known_clusters
from batchjob_stats_db.queries.efficiency import RUNNING

RESOURCES = {
    "cpu": ("measured_cpu_allocated_seconds", "cpu_seconds"),
    "memory": ("measured_memory_allocated_byte_seconds", "memory_byte_seconds"),
    "gpu": ("measured_gpu_allocated_seconds", "gpu_seconds"),
}
"""What jobs that were measured had, and what they used of it: columns of the daily sums."""


def unused(resource: str) -> str:
    """The key of what was allocated and not used."""
    return RESOURCES[resource][0].removeprefix("measured_").replace("allocated", "unused")


def wasted(sums: Sequence[RowMapping], resource: str, limit: int) -> list[dict[str, Any]]:
    """Of these sums those with the most of a resource unused, each with all that was unused."""
    rows = []
    for row in sums:
        made: dict[str, Any] = dict(row)
        for name, (allocated, used) in RESOURCES.items():
            # A sum over a day's end may be ahead of its allocation by a sample.
            made[unused(name)] = max(row[allocated] - row[used], 0.0)
            made[f"{name}_efficiency"] = row[used] / row[allocated] if row[allocated] else None
        rows.append(made)
    rows.sort(key=lambda row: row[unused(resource)], reverse=True)
    return [row for row in rows[:limit] if row[unused(resource)] > 0]


def failing(sums: Sequence[RowMapping], limit: int) -> list[dict[str, Any]]:
    """Of these sums those with the most failed jobs."""
    rows = [
        {**row, "failed_ratio": row["jobs_failed"] / row["jobs_ended"]}
        for row in sums
        if row["jobs_ended"]
    ]
    return sorted(rows, key=lambda row: row["jobs_failed"], reverse=True)[:limit]


def waited(
    db: Connection,
    access: Access,
    since: int,
    until: int,
    cluster: str | None = None,
    partition: str | None = None,
) -> list[RowMapping]:
    """Waits by day and partition: of all jobs as they are kept, of some as they are.

    Raises TooManyError.
    """
    job, kept = schema.job.c, schema.daily_wait.c
    if access.everything:
        query = sa.select(schema.daily_wait).where(kept.day >= since, kept.day < until)
        query = query.where(kept.cluster.in_(known_clusters(db, cluster)))
        if partition is not None:
            query = query.where(kept.partition == partition)
        return list(db.execute(query.order_by(*schema.daily_wait.primary_key)).mappings().all())
    which = [
        job.cluster.in_(known_clusters(db, cluster)), visible(access),
        job.start_time >= since, job.start_time < until,
    ]  # fmt: skip
    paging.bounded(db, schema.job, which, "waits")
    if partition is not None:
        which.append(job.partition == partition)
    return list(db.execute(waits(*which)).mappings().all())


_held = schema.job_usage.c.until_time - schema.job.c.start_time
_mean = schema.job_usage.c.gpu_utilization_ratio
_at_most = sa.bindparam("at_most", type_=sa.Float)
_idle = sa.case(
    (_mean <= _at_most, schema.job_usage.c.gpus),
    else_=(
        sa.select(sa.func.count())
        .where(
            schema.job_gpu.c.job_id == schema.job.c.id,
            schema.job_gpu.c.utilization_ratio <= _at_most,
        )
        .scalar_subquery()
    ),
)
IDLE_COLUMNS = (
    *(
        schema.job.c[name]
        for name in ["cluster", "jobid", "username", "account", "partition", "name"]
    ),
    schema.job.c.allocated_gpus,
    sa.type_coerce(_idle, sa.BigInteger).label("idle_gpus"),
    _mean.label("gpu_utilization_ratio"),
    schema.job_usage.c.gpu_memory_peak_bytes,
    schema.job_usage.c.until_time.label("measured_time"),
    sa.type_coerce(_idle * _held, sa.BigInteger).label("idle_gpu_seconds"),
)
"""Columns of `idle_gpus`."""


def idle_gpus(
    db: Connection,
    access: Access,
    at_most: float,
    held_seconds: int,
    limit: int,
    cluster: str | None = None,
) -> list[RowMapping]:
    """Running jobs with GPUs whose mean utilisation is at most so much, held for so long.

    As they were last measured, those with the most idle GPU time first.
    """
    job = schema.job.c
    query = (
        sa.select(*IDLE_COLUMNS)
        .select_from(schema.job.join(schema.job_usage))
        .where(
            job.cluster.in_(known_clusters(db, cluster)), visible(access),
            job.end_time.is_(None), job.state.in_(RUNNING),
            job.allocated_gpus > 0, _held >= held_seconds, _idle > 0,
        )
        .order_by(sa.desc("idle_gpu_seconds"), job.id)
        .limit(limit)
    )  # fmt: skip
    return list(db.execute(query, {"at_most": at_most}).mappings().all())
