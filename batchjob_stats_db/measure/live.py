"""The current usage of running jobs, from one query for all of them.

A job's stored usage is up to `tsdb.refresh` old. Only the time since then is queried here: counters
are at their total; peaks are the larger of stored and new; means are extended by the time since.
Ended jobs that have not been measured since are queried as well, up to their end.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.judgements import RUNNING_STATES
from batchjob.quantities.quantity import Statistic
from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.batches import measure
from batchjob_stats_db.measure.job_usage import GpuUsage, JobToMeasure, MeasuredUsage
from batchjob_stats_db.measure.pending import JOB_COLUMNS, job_to_measure, runs_by_jobid
from batchjob_stats_db.queries import gpus
from batchjob_stats_db.queries.gpus import GpuKey, GpuMean
from batchjob_stats_db.timeseries.base import TimeSeriesStore

Row = Mapping[Any, Any]

_COLUMNS = {
    statistic: [
        column.name for column in (*USAGE_COLUMNS, *ENERGY_COLUMNS) if column.statistic is statistic
    ]
    for statistic in (Statistic.TOTAL, Statistic.PEAK, Statistic.MEAN)
}
_MAXIMUM_COLUMNS = (*_COLUMNS[Statistic.TOTAL], *_COLUMNS[Statistic.PEAK], "gpu_memory_peak_bytes")
_MINIMUM_SCRAPES = 3
_MEAN_COLUMNS = (*_COLUMNS[Statistic.MEAN], "gpu_utilization_ratio")


class LiveJob(NamedTuple):
    """The usage of a job up to now, or to its end."""

    usage: Mapping[str, Any]  # by column of `job_usage`
    gpus: Sequence[float | None]  # mean utilisation (0..1) of each, in node order


def is_queryable(row: Row, policy: UsagePolicy, now: int) -> bool:
    """Whether the unmeasured time is short enough to be queried at once."""
    start, end = row["start_time"], row["end_time"]
    if start is None:
        return False
    longest = 2 * policy.refresh_seconds
    if end is None:
        return bool(row["state"] in RUNNING_STATES and now - _measured_until(row) <= longest)
    due = row["usage_due_time"] is not None and _measured_until(row) < end
    return bool(due and now - _measured_until(row) <= longest + policy.settle_seconds)


def _measured_until(row: Row) -> int:
    until = row["usage_until_time"] if row["usage_samples"] else None
    return int(max(until or 0, row["start_time"]))  # rounded down to a whole second


def query_live_usage(
    db: Connection,
    time_series: TimeSeriesStore,
    rows: Sequence[Row],
    policy: UsagePolicy,
    interval: float,
    now: int,
) -> dict[int, LiveJob]:
    """The usage of jobs up to now, or to their end, by the rows' numbers.

    `rows` have the columns of `queries.efficiency.columns()`, and are `is_queryable`. Jobs without
    samples are not in the answer. Raises TimeSeriesError.
    """
    by_id = {row["id"]: row for row in rows}
    jobs = _unmeasured_parts(db, rows, policy, interval, now)
    usages = measure(time_series, jobs, interval)
    recorded = gpus.means(db, [usage.job_id for usage in usages if usage.devices])
    live_jobs: dict[int, LiveJob] = {}
    for job, usage in zip(jobs, usages, strict=True):
        row = by_id[usage.job_id]
        # If a node stopped reporting, its totals are only in the stored usage, which does not
        # separate nodes.
        if usage.samples and usage.nodes >= (row["usage_nodes"] or 0):
            merged = _merge_usage(row, usage, job.start, time_series.source, now)
            new = _new_fraction(row, merged["until_time"], job.start)
            devices = _merge_gpu_ratios(recorded.get(usage.job_id, {}), usage.devices, new)
            live_jobs[usage.job_id] = LiveJob(merged, devices)
    return live_jobs


def _unmeasured_parts(
    db: Connection, rows: Sequence[Row], policy: UsagePolicy, interval: float, now: int
) -> list[JobToMeasure]:
    """The jobs, each with the time not measured yet, at least a few scrapes.

    All of them begin at the same time, so that they share a query.
    """
    begin = min((_measured_until(row) for row in rows), default=now)
    begin = min(begin, now - max(60, math.ceil(_MINIMUM_SCRAPES * interval)))
    jobs = []
    for cluster in sorted({row["cluster"] for row in rows}):
        own = [row for row in rows if row["cluster"] == cluster]
        runs = runs_by_jobid(db, cluster, [row["jobid"] for row in own])
        numbers = [row["id"] for row in own]
        query = sa.select(*JOB_COLUMNS).where(schema.job.c.id.in_(numbers))
        for row in db.execute(query):
            job = job_to_measure(cluster, row, runs[row.jobid], policy, now)
            start = max(job.start, begin)
            jobs.append(job._replace(start=start, span=job.span._replace(start=start)))
    return jobs


def _merge_usage(
    row: Row, usage: MeasuredUsage, begin: int, source: str, now: int
) -> dict[str, Any]:
    """Stored usage and new measurements; `usage` is of the time from `begin` on."""
    names = [column.name for column in schema.job_usage.columns if column.name != "job_id"]
    stored = {name: row[f"usage_{name}"] for name in names} if row["usage_samples"] else {}
    stored_until = _measured_until(row)
    until = max(min(usage.until_time, now), stored_until)
    before = stored_until - row["start_time"]
    new = _new_fraction(row, until, begin)
    if stored and row["end_time"] is not None and before > 0:
        # The row's coverage is of the job's whole life; convert it back to the measured time.
        stored["coverage"] *= (row["end_time"] - row["start_time"]) / before
    merged = {**dict.fromkeys(names), **stored}
    for name in _MAXIMUM_COLUMNS:
        both = [n for n in (stored.get(name), usage.values.get(name)) if n is not None]
        merged[name] = max(both, default=None)
    for name in _MEAN_COLUMNS:
        mean, seen = stored.get(name), usage.values.get(name)
        if mean is not None and seen is not None:
            merged[name] = _weighted_mean(mean, stored["samples"], seen, new * usage.gauge_samples)
        else:
            merged[name] = mean if seen is None else seen
    merged["gpus"] = max(stored.get("gpus") or 0, usage.values.get("gpus") or 0) or None
    merged |= {
        "source": source,
        "until_time": until,
        "measured_time": now,
        "samples": (stored.get("samples") or 0) + max(1, round(new * usage.samples)),
        "nodes": max(stored.get("nodes") or 0, usage.nodes),
        "dropped_series": max(stored.get("dropped_series") or 0, usage.dropped_series),
        "coverage": _merge_coverage(row, stored, usage, begin, until),
        "doubt": stored.get("doubt") or usage.doubt,
    }
    return merged


def _new_fraction(row: Row, until: int, begin: int) -> float:
    """The part of the measurements from `begin` to `until` that is not in the stored usage."""
    return min(1.0, (until - _measured_until(row)) / max(1, until - begin))


def _merge_gpu_ratios(
    stored: Mapping[GpuKey, GpuMean], seen: Sequence[GpuUsage], new: float
) -> list[float | None]:
    """The mean of each GPU, from its stored one and the new measurements."""
    merged = {key: gpu.utilization_ratio for key, gpu in stored.items()}
    for gpu in seen:
        key = GpuKey(gpu.node, gpu.gpu, gpu.uuid, gpu.gpu_instance)
        mean, ratio = merged.get(key), gpu.utilization_ratio
        if mean is not None and ratio is not None:
            ratio = _weighted_mean(mean, stored[key].samples, ratio, new * gpu.samples)
        merged[key] = mean if ratio is None else ratio
    return [merged[key] for key in sorted(merged)]


def _merge_coverage(
    row: Row, stored: Mapping[str, Any], usage: MeasuredUsage, begin: int, until: int
) -> float:
    """Coverage of the time from the job's start to `until`."""
    stored_until = _measured_until(row)
    if usage.nodes >= (row["allocated_nodes"] or 1):
        # The counters of all nodes were read, and include everything counted before.
        since, other = until - begin, begin - row["start_time"]
        return _weighted_mean(1.0, other, usage.coverage, since)
    before, since = stored_until - row["start_time"], until - stored_until
    return _weighted_mean(stored.get("coverage", 0.0), before, usage.coverage, since)


def _weighted_mean(one: float, weight: float, other: float, other_weight: float) -> float:
    whole = weight + other_weight
    return (one * weight + other * other_weight) / whole if whole > 0 else other
