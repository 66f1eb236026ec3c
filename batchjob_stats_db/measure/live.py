"""What running jobs have used by now, from one question per statistic for all of them.

A job's stored usage is up to `tsdb.refresh` old. Here only the time since then is asked for: CPU
time and energy are counters, which stand at their total; peaks are the larger of stored and seen;
the use of GPUs is a mean, to which the time since is added. All else stays as stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.quantities.energy import ENERGY_JOULES
from batchjob.quantities.gpu import JOB_GPU_MEMORY, JOB_GPU_UTILIZATION
from batchjob.quantities.job import (
    CPU_SECONDS,
    CPU_SYSTEM,
    CPU_USER,
    MEMORY_CURRENT,
    MEMORY_PEAK,
)
from batchjob.quantities.quantity import Statistic
from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.job_usage import JobToMeasure, MeasuredUsage, measure
from batchjob_stats_db.measure.pending import WANTED, measured, runs_of_ids
from batchjob_stats_db.queries.efficiency import RUNNING
from batchjob_stats_db.timeseries.base import TimeSeriesStore

Row = Mapping[Any, Any]

_METRICS: Mapping[Statistic, Sequence[str]] = {
    Statistic.TOTAL: (CPU_SECONDS.name, ENERGY_JOULES.metric.name),
    Statistic.PEAK: (
        MEMORY_PEAK.metric.name,
        MEMORY_CURRENT.metric.name,
        JOB_GPU_MEMORY.metric.name,
    ),
    Statistic.MEAN: (JOB_GPU_UTILIZATION.metric.name,),
    Statistic.COUNT: (CPU_SECONDS.name, JOB_GPU_UTILIZATION.metric.name),
}
_GROWING = (
    *(
        column.name
        for column in (*USAGE_COLUMNS, *ENERGY_COLUMNS)
        if column.quantity in (CPU_USER, CPU_SYSTEM, ENERGY_JOULES, MEMORY_PEAK)
    ),
    "gpu_memory_peak_bytes",
)


def askable(row: Row, policy: UsagePolicy, now: int) -> bool:
    """Whether little enough is missing from a running job's usage to be asked for at once."""
    if row["state"] not in RUNNING or row["end_time"] is not None or row["start_time"] is None:
        return False
    return bool(now - _known_until(row) <= 2 * policy.refresh_seconds)


def _known_until(row: Row) -> int:
    until = row["usage_until_time"] if row["usage_samples"] else None
    return int(max(until or 0, row["start_time"]))


def live(
    db: Connection,
    history: TimeSeriesStore,
    rows: Sequence[Row],
    policy: UsagePolicy,
    interval: float,
    now: int,
) -> dict[int, dict[str, Any]]:
    """The usage of running jobs by now, as columns of `job_usage`, by the numbers of their rows.

    `rows` have the columns of `queries.efficiency.columns()`, and are `askable`. A job of which
    nothing was seen is not in the answer. Raises HistoryError.
    """
    by_id = {row["id"]: row for row in rows}
    jobs = _recent(db, rows, policy, now)
    found: dict[int, dict[str, Any]] = {}
    for usage in measure(history, jobs, interval, _METRICS):
        if usage.samples:
            found[usage.job_id] = _together(by_id[usage.job_id], usage, history.source, now)
    return found


def _recent(
    db: Connection, rows: Sequence[Row], policy: UsagePolicy, now: int
) -> list[JobToMeasure]:
    """The jobs, each with the time that is not known yet.

    All from one moment on, so that they share a question.
    """
    begin = min((_known_until(row) for row in rows), default=now)
    jobs = []
    for cluster in sorted({row["cluster"] for row in rows}):
        own = [row for row in rows if row["cluster"] == cluster]
        runs = runs_of_ids(db, cluster, [row["jobid"] for row in own])
        numbers = [row["id"] for row in own]
        query = sa.select(*WANTED).where(schema.job.c.id.in_(numbers))
        for row in db.execute(query):
            job = measured(cluster, row, runs[row.jobid], policy, now)
            start = max(job.start, min(begin, now - 60))
            jobs.append(job._replace(start=start, span=job.span._replace(start=start)))
    return jobs


def _together(row: Row, usage: MeasuredUsage, source: str, now: int) -> dict[str, Any]:
    """Stored usage and what was seen since."""
    names = [column.name for column in schema.job_usage.columns if column.name != "job_id"]
    stored = {name: row[f"usage_{name}"] for name in names} if row["usage_samples"] else {}
    known_until = _known_until(row)
    before, since = known_until - row["start_time"], max(1, now - known_until)
    made = {**dict.fromkeys(names), **stored}
    for name in _GROWING:
        both = [n for n in (stored.get(name), usage.values.get(name)) if n is not None]
        made[name] = max(both, default=None)
    seen = usage.values.get("gpu_utilization_ratio")
    if seen is not None:
        mean = stored.get("gpu_utilization_ratio")
        made["gpu_utilization_ratio"] = seen if mean is None else _mean(mean, before, seen, since)
        made["gpus"] = max(stored.get("gpus") or 0, usage.values["gpus"])
    made |= {
        "source": source,
        "until_time": now,
        "measured_time": now,
        "samples": (stored.get("samples") or 0) + usage.samples,
        "nodes": max(stored.get("nodes") or 0, usage.nodes),
        "dropped_series": max(stored.get("dropped_series") or 0, usage.dropped_series),
        "coverage": _mean(stored.get("coverage", 0.0), before, usage.coverage, since),
        "doubt": stored.get("doubt") or usage.doubt,
    }
    return made


def _mean(one: float, seconds: float, other: float, since: float) -> float:
    return (one * seconds + other * since) / (seconds + since)
