"""Queries for operators: waste, failures, pace of nodes, waits, allocated but idle GPUs.

Waste is what jobs were allocated and did not use, in sums over days. The figures of single jobs are
defined in efficiency.py.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.sql.elements import ColumnElement

from batchjob.judgements import (
    COMPLETE_COVERAGE,
    GPU_COUNTERS_FOLLOW_SECONDS,
    RUNNING_STATES,
    unused_cpu_seconds,
)
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, visible
from batchjob_stats_db.measure.rollup import waits
from batchjob_stats_db.queries.efficiency import GPUS_HELD
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_db.queries.job_list import check_row_limit, rows_by_ids
from batchjob_stats_db.queries.jobs import gpu_utilizations

Row = Mapping[Any, Any]


RESOURCES = {
    "cpu": ("measured_cpu_allocated_seconds", "cpu_seconds"),
    "memory": ("measured_memory_peak_allocated_byte_seconds", "memory_peak_byte_seconds"),
    "gpu": ("measured_gpu_allocated_seconds", "gpu_seconds"),
}
"""Columns of the daily sums of measured jobs: what was allocated, and what of it was used."""


def unused_key(resource: str) -> str:
    name = RESOURCES[resource][0].removeprefix("measured_").replace("allocated", "unused")
    return name.replace("_peak", "")


def efficiency(sums: Row, resource: str) -> float | None:
    """What was used of what was allocated; None if nothing was measured."""
    allocated, used = (sums[column] for column in RESOURCES[resource])
    return used / allocated if allocated else None


def with_waste(sums: Row) -> dict[Any, Any]:
    """The sums, with the efficiency and the unused amount of each resource."""
    row = dict(sums)
    for name, (allocated, used) in RESOURCES.items():
        # Around midnight, usage may exceed its allocation by a sample.
        row[unused_key(name)] = max(sums[allocated] - sums[used], 0.0)
        row[f"{name}_efficiency"] = efficiency(sums, name)
    return row


_MAX_CANDIDATES = 1000  # jobs to check for idle GPUs


def most_wasteful(
    sums: Sequence[RowMapping], limit: int, resource: str = ""
) -> list[dict[str, Any]]:
    """The sums with the most waste of a resource, or of CPUs and GPUs together."""
    unused = itemgetter(unused_key(resource)) if resource else unused_cpu_seconds
    rows = sorted(map(with_waste, sums), key=unused, reverse=True)
    return [row for row in rows[:limit] if unused(row) > 0]


def most_failures(sums: Sequence[RowMapping], limit: int) -> list[dict[str, Any]]:
    """The sums with the most failed jobs."""
    rows = [
        {**row, "failed_ratio": row["jobs_failed"] / row["jobs_ended"]}
        for row in sums
        if row["jobs_ended"]
    ]
    return sorted(rows, key=lambda row: row["jobs_failed"], reverse=True)[:limit]


def failures_by_state(db: Connection, cluster: str, since: int) -> list[RowMapping]:
    job = schema.job.c
    query = _failed_since(job.state).group_by(job.state)
    parameters = {"cluster": cluster, "since": since}
    return list(db.execute(query.order_by(sa.desc("jobs_failed")), parameters).mappings().all())


def failures_by_node(db: Connection, cluster: str, since: int) -> list[RowMapping]:
    """`node`, `jobs_failed` and `users`, those with failed jobs of the most users first.

    A node on which the jobs of several users fail is more likely at fault than their programs.
    """
    share = schema.job_node.c
    query = (
        _failed_since(share.node)
        .select_from(schema.job.join(schema.job_node))
        .where(share.until_time.is_(None))
        .group_by(share.node)
        .order_by(sa.desc("users"), sa.desc("jobs_failed"), share.node)
    )
    return list(db.execute(query, {"cluster": cluster, "since": since}).mappings().all())


def paces_by_node(db: Connection, cluster: str) -> list[RowMapping]:
    """`node`, `pace`: how many times as long jobs took there as elsewhere, and `jobs_compared`."""
    pace = schema.node_pace.c
    query = sa.select(pace.node, pace.pace, pace.jobs_compared).where(pace.cluster == cluster)
    return list(db.execute(query).mappings().all())


def cpus_by_node(db: Connection, cluster: str, since: int) -> dict[str, float | None]:
    """By node, the CPUs of all jobs that were there since a time; None: not all are known."""
    job, share = schema.job.c, schema.job_node.c
    several = [
        sa.select(share.node, share.cpus)
        .select_from(schema.job.join(schema.job_node))
        .where(job.cluster == cluster, schema.HAS_STARTED, ends)
        for ends in (job.end_time.is_(None) & job.state.in_(RUNNING_STATES), job.end_time >= since)
    ]
    each = sa.union_all(*several).subquery().c
    known = sa.func.count() == sa.func.count(each.cpus)
    cpus = sa.case((known, sa.func.sum(each.cpus))).label("cpus")
    query = sa.select(each.node, cpus).group_by(each.node)
    return {row.node: row.cpus for row in db.execute(query)}


def _failed_since(by: ColumnElement[Any]) -> sa.Select[Any]:
    job = schema.job.c
    return sa.select(
        by,
        sa.func.count().label("jobs_failed"),
        sa.func.count(job.username.distinct()).label("users"),
    ).where(
        job.cluster == sa.bindparam("cluster"), job.end_time >= sa.bindparam("since"),
        schema.HAS_FAILED,
    )  # fmt: skip


def waits_by_partition(
    db: Connection,
    access: Access,
    since: int,
    until: int,
    cluster: str | None = None,
    partition: str | None = None,
) -> list[RowMapping]:
    """Waits by day and partition: stored ones for all jobs, computed ones for some.

    Raises TooManyError.
    """
    job, stored = schema.job.c, schema.daily_wait.c
    if access.everything:
        query = sa.select(schema.daily_wait).where(stored.day >= since, stored.day < until)
        query = query.where(stored.cluster.in_(cluster_names(db, cluster)))
        if partition is not None:
            query = query.where(stored.partition == partition)
        return list(db.execute(query.order_by(*schema.daily_wait.primary_key)).mappings().all())
    which = [
        job.cluster.in_(cluster_names(db, cluster)), visible(access),
        job.start_time >= since, job.start_time < until,
    ]  # fmt: skip
    check_row_limit(db, schema.job, which, "waits")
    if partition is not None:
        which.append(job.partition == partition)
    return list(db.execute(waits(*which)).mappings().all())


_IDENTITY = ("cluster", "jobid", "username", "account", "partition", "name")
IDLE_COLUMNS = (
    *(schema.job.c[name] for name in (*_IDENTITY, "allocated_gpus")),
    sa.Column("idle_gpus", sa.BigInteger),
    schema.job_usage.c.gpu_utilization_ratio,
    schema.job_usage.c.gpu_memory_peak_bytes,
    sa.Column("measured_time", sa.BigInteger),
    sa.Column("idle_gpu_seconds", sa.BigInteger),
)
"""Columns of `idle_gpus`."""


def idle_gpus(
    db: Connection,
    access: Access,
    at_most: float,
    held_seconds: float,
    limit: int,
    cluster: str | None = None,
) -> list[dict[str, Any]]:
    """Running jobs with GPUs of low mean utilisation that have been held for some time.

    Those with the most idle GPU time come first.
    """
    rows = rows_by_ids(db, _candidates(db, access, cluster))
    gpus = gpu_utilizations(db, [row["id"] for row in rows])
    found = (_with_idle_gpus(row, at_most, gpus.get(row["id"], ())) for row in rows)
    idle = [
        each
        for row, each in zip(rows, found, strict=True)
        if each["idle_gpus"] and each["measured_time"] - row["start_time"] >= held_seconds
    ]
    return sorted(idle, key=lambda each: each["idle_gpu_seconds"], reverse=True)[:limit]


def held_gpus(db: Connection, cluster: str) -> dict[tuple[str, str], int]:
    """GPUs allocated to the running jobs of a cluster, by job id and user; for the poller."""
    job = schema.job.c
    query = sa.select(job.jobid, job.username, job.allocated_gpus).where(
        job.cluster == cluster, job.end_time.is_(None), job.state.in_(RUNNING_STATES),
        job.allocated_gpus > 0,
    )  # fmt: skip
    return {(row.jobid, row.username): row.allocated_gpus for row in db.execute(query)}


def _candidates(db: Connection, access: Access, cluster: str | None) -> Sequence[int]:
    """Ids of running jobs with GPUs: those known to use them least, then the newest."""
    job, usage = schema.job.c, schema.job_usage.c
    idle = (1 - usage.gpu_utilization_ratio) * (usage.until_time - job.start_time) * GPUS_HELD
    return db.scalars(
        sa.select(job.id)
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(
            job.cluster.in_(cluster_names(db, cluster)), visible(access),
            job.end_time.is_(None), job.state.in_(RUNNING_STATES), GPUS_HELD > 0,
            schema.HAS_STARTED,
        )
        .order_by(sa.func.coalesce(idle, -1).desc(), sa.desc(job.start_time + 0), job.id)
        .limit(_MAX_CANDIDATES)
    ).all()  # fmt: skip


def _with_idle_gpus(
    row: RowMapping, at_most: float, gpus: Sequence[float | None]
) -> dict[str, Any]:
    """How many of its GPUs are idle; none if they were observed for a part of its time."""
    mean, until = row["usage_gpu_utilization_ratio"], row["usage_until_time"]
    idle_by_gpu = sum(ratio is not None and ratio <= at_most for ratio in gpus)
    known = sum(ratio is not None for ratio in gpus) or row["usage_gpus"]
    idle = known if mean is not None and mean <= at_most else idle_by_gpu
    if (observed := row["usage_gpu_observed_seconds"]) is not None:
        measured = (until - row["start_time"]) * min(1.0, row["usage_coverage"])
        expected = (measured - GPU_COUNTERS_FOLLOW_SECONDS) * (known or 0)
        idle = idle if observed >= COMPLETE_COVERAGE * expected else 0
    return {
        **{name: row[name] for name in _IDENTITY},
        "allocated_gpus": row["gpus_held"],
        "idle_gpus": idle or 0,
        "gpu_utilization_ratio": mean,
        "gpu_memory_peak_bytes": row["usage_gpu_memory_peak_bytes"],
        "measured_time": until,
        "idle_gpu_seconds": (idle or 0) * ((until or 0) - row["start_time"]),
    }
