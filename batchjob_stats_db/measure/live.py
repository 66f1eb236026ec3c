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

from batchjob.quantities.quantity import Statistic
from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.batches import measure
from batchjob_stats_db.measure.job_usage import GpuUsage, JobToMeasure, MeasuredUsage
from batchjob_stats_db.measure.pending import WANTED, measured, runs_of_ids
from batchjob_stats_db.queries import gpus
from batchjob_stats_db.queries.efficiency import RUNNING
from batchjob_stats_db.queries.gpus import GpuKey, GpuMean
from batchjob_stats_db.timeseries.base import TimeSeriesStore

Row = Mapping[Any, Any]

_COLUMNS = {
    statistic: [
        column.name for column in (*USAGE_COLUMNS, *ENERGY_COLUMNS) if column.statistic is statistic
    ]
    for statistic in (Statistic.TOTAL, Statistic.PEAK, Statistic.MEAN)
}
_GROWING = (*_COLUMNS[Statistic.TOTAL], *_COLUMNS[Statistic.PEAK], "gpu_memory_peak_bytes")
_LEAST_SCRAPES = 3
_AVERAGED = (*_COLUMNS[Statistic.MEAN], "gpu_utilization_ratio")


class LiveJob(NamedTuple):
    """The usage of a job up to now, or to its end."""

    usage: Mapping[str, Any]  # by column of `job_usage`
    gpus: Sequence[float | None]  # mean utilisation (0..1) of each, in node order


def askable(row: Row, policy: UsagePolicy, now: int) -> bool:
    """Whether the missing time is short enough to be queried at once."""
    start, end = row["start_time"], row["end_time"]
    if start is None:
        return False
    most = 2 * policy.refresh_seconds
    if end is None:
        return bool(row["state"] in RUNNING and now - _known_until(row) <= most)
    due = row["usage_due_time"] is not None and _known_until(row) < end
    return bool(due and now - _known_until(row) <= most + policy.settle_seconds)


def _known_until(row: Row) -> int:
    until = row["usage_until_time"] if row["usage_samples"] else None
    return int(max(until or 0, row["start_time"]))  # rounded down to a whole second


def live(
    db: Connection,
    history: TimeSeriesStore,
    rows: Sequence[Row],
    policy: UsagePolicy,
    interval: float,
    now: int,
) -> dict[int, LiveJob]:
    """The usage of jobs up to now, or to their end, by the rows' numbers.

    `rows` have the columns of `queries.efficiency.columns()`, and are `askable`. Jobs without
    samples are not in the answer. Raises TimeSeriesError.
    """
    by_id = {row["id"]: row for row in rows}
    jobs = _recent(db, rows, policy, interval, now)
    usages = measure(history, jobs, interval)
    recorded = gpus.means(db, [usage.job_id for usage in usages if usage.devices])
    found: dict[int, LiveJob] = {}
    for job, usage in zip(jobs, usages, strict=True):
        row = by_id[usage.job_id]
        # If a node stopped reporting, its totals are only in the stored usage, which does not
        # separate nodes.
        if usage.samples and usage.nodes >= (row["usage_nodes"] or 0):
            made = _together(row, usage, job.start, history.source, now)
            new = _new_part(row, made["until_time"], job.start)
            devices = _gpus(recorded.get(usage.job_id, {}), usage.devices, new)
            found[usage.job_id] = LiveJob(made, devices)
    return found


def _recent(
    db: Connection, rows: Sequence[Row], policy: UsagePolicy, interval: float, now: int
) -> list[JobToMeasure]:
    """The jobs, each with the time that is not known yet, at least a few scrapes.

    All of them begin at one time, so that they share a query.
    """
    begin = min((_known_until(row) for row in rows), default=now)
    begin = min(begin, now - max(60, math.ceil(_LEAST_SCRAPES * interval)))
    jobs = []
    for cluster in sorted({row["cluster"] for row in rows}):
        own = [row for row in rows if row["cluster"] == cluster]
        runs = runs_of_ids(db, cluster, [row["jobid"] for row in own])
        numbers = [row["id"] for row in own]
        query = sa.select(*WANTED).where(schema.job.c.id.in_(numbers))
        for row in db.execute(query):
            job = measured(cluster, row, runs[row.jobid], policy, now)
            start = max(job.start, begin)
            jobs.append(job._replace(start=start, span=job.span._replace(start=start)))
    return jobs


def _together(row: Row, usage: MeasuredUsage, begin: int, source: str, now: int) -> dict[str, Any]:
    """Stored usage and new measurements; `usage` is of the time from `begin` on."""
    names = [column.name for column in schema.job_usage.columns if column.name != "job_id"]
    stored = {name: row[f"usage_{name}"] for name in names} if row["usage_samples"] else {}
    known_until = _known_until(row)
    until = max(min(usage.until_time, now), known_until)
    before = known_until - row["start_time"]
    new = _new_part(row, until, begin)
    if stored and row["end_time"] is not None and before > 0:
        # The row's coverage is of the job's whole life; convert it back to the measured time.
        stored["coverage"] *= (row["end_time"] - row["start_time"]) / before
    made = {**dict.fromkeys(names), **stored}
    for name in _GROWING:
        both = [n for n in (stored.get(name), usage.values.get(name)) if n is not None]
        made[name] = max(both, default=None)
    for name in _AVERAGED:
        mean, seen = stored.get(name), usage.values.get(name)
        if mean is not None and seen is not None:
            made[name] = _mean(mean, stored["samples"], seen, new * usage.gauge_samples)
        else:
            made[name] = mean if seen is None else seen
    made["gpus"] = max(stored.get("gpus") or 0, usage.values.get("gpus") or 0) or None
    made |= {
        "source": source,
        "until_time": until,
        "measured_time": now,
        "samples": (stored.get("samples") or 0) + max(1, round(new * usage.samples)),
        "nodes": max(stored.get("nodes") or 0, usage.nodes),
        "dropped_series": max(stored.get("dropped_series") or 0, usage.dropped_series),
        "coverage": _coverage(row, stored, usage, begin, until),
        "doubt": stored.get("doubt") or usage.doubt,
    }
    return made


def _new_part(row: Row, until: int, begin: int) -> float:
    """The part of the measurements from `begin` to `until` that is not in the stored usage."""
    return min(1.0, (until - _known_until(row)) / max(1, until - begin))


def _gpus(
    stored: Mapping[GpuKey, GpuMean], seen: Sequence[GpuUsage], new: float
) -> list[float | None]:
    """The mean of each GPU, from its stored one and the new measurements."""
    together = {key: gpu.utilization_ratio for key, gpu in stored.items()}
    for gpu in seen:
        key = GpuKey(gpu.node, gpu.gpu, gpu.uuid, gpu.gpu_instance)
        mean, ratio = together.get(key), gpu.utilization_ratio
        if mean is not None and ratio is not None:
            ratio = _mean(mean, stored[key].samples, ratio, new * gpu.samples)
        together[key] = mean if ratio is None else ratio
    return [together[key] for key in sorted(together)]


def _coverage(
    row: Row, stored: Mapping[str, Any], usage: MeasuredUsage, begin: int, until: int
) -> float:
    """Coverage of the time from the job's start to `until`."""
    known_until = _known_until(row)
    if usage.nodes >= (row["allocated_nodes"] or 1):
        # The counters of all nodes were read, and include everything counted before.
        since, other = until - begin, begin - row["start_time"]
        return _mean(1.0, other, usage.coverage, since)
    before, since = known_until - row["start_time"], until - known_until
    return _mean(stored.get("coverage", 0.0), before, usage.coverage, since)


def _mean(one: float, weight: float, other: float, other_weight: float) -> float:
    whole = weight + other_weight
    return (one * weight + other * other_weight) / whole if whole > 0 else other
