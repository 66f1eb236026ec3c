"""What running jobs use now: means of the last three minutes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchjob.quantities.job import MEMORY_CURRENT
from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.measure.job_usage import (
    PRESENCE_METRIC,
    JobToMeasure,
    MeasuredUsage,
    compute_usage,
    series_by_jobid,
)
from batchjob_stats_db.measure.node_usage import UTILIZATION
from batchjob_stats_db.timeseries.base import TimeSeriesStore

_SECONDS = 180
_WANTED: Mapping[Statistic, Sequence[str]] = {
    Statistic.TOTAL: (PRESENCE_METRIC,),
    Statistic.MEAN: (MEMORY_CURRENT.metric.name, UTILIZATION),
    Statistic.COUNT: (PRESENCE_METRIC, UTILIZATION),
    Statistic.LATEST: (PRESENCE_METRIC,),
}


class CurrentUse(NamedTuple):
    """Of one job, on all its nodes; None: not measured."""

    cpus: float | None
    memory_bytes: float | None
    gpu_ratio: float | None  # mean utilisation of its GPUs
    sample_time: int  # of the last sample


def current_use(
    store: TimeSeriesStore, jobs: Sequence[JobToMeasure], interval: float, now: int
) -> dict[int, CurrentUse]:
    """By the id of the job's row, of those with a sample in this time; raises TimeSeriesError.

    `interval`: seconds between two samples of a series.
    """
    latest = _measure(store, jobs, now - _SECONDS, now, interval)
    longer = [job for job in jobs if job.id in latest and job.start < now - _SECONDS]
    before = _measure(store, longer, now - 2 * _SECONDS, now - _SECONDS, interval)
    found = {}
    for job in jobs:
        if (usage := latest.get(job.id)) is not None:
            begin = before.get(job.id)
            seconds = usage.until_time - (begin.until_time if begin else job.start)
            used = _cpu_seconds(usage) - (_cpu_seconds(begin) if begin else 0.0)
            is_known = begin is not None or job not in longer
            found[job.id] = CurrentUse(
                used / seconds if is_known and seconds > 0 and used >= 0 else None,
                usage.values.get("memory_average_bytes"),
                usage.values.get("gpu_utilization_ratio"),
                usage.until_time,
            )
    return found


def _cpu_seconds(usage: MeasuredUsage) -> float:
    return sum(usage.values.get(f"{mode}_cpu_seconds", 0.0) for mode in ("user", "system"))


def _measure(
    store: TimeSeriesStore, jobs: Sequence[JobToMeasure], since: int, until: int, interval: float
) -> dict[int, MeasuredUsage]:
    """The usage of jobs by the samples of this time alone, with totals since their start."""
    found: dict[int, MeasuredUsage] = {}
    for cluster in {job.cluster for job in jobs}:
        here = [
            job._replace(
                window=job.window._replace(
                    start=max(since, job.start), until=until, continues=False,
                    near_other_run=job.window.near_other_run and job.start > since,
                )
            )
            for job in jobs if job.cluster == cluster
        ]  # fmt: skip
        series = series_by_jobid(store, _WANTED, [job.window for job in here])
        usages = (compute_usage(job, series[job.jobid], interval) for job in here)
        found |= {usage.job_id: usage for usage in usages if usage.samples}
    return found
