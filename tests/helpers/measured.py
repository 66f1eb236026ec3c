"""Measures jobs at once, for tests of what a store's samples give."""

from collections.abc import Sequence

from batchjob_stats_db.measure.job_usage import JobToMeasure, MeasuredUsage, compute_usage
from batchjob_stats_db.measure.pending import read_series
from batchjob_stats_db.timeseries.base import TimeSeriesStore


def measure(
    time_series: TimeSeriesStore, jobs: Sequence[JobToMeasure], interval: float
) -> list[MeasuredUsage]:
    """The usages of jobs, in order; raises TimeSeriesError."""
    usages = {
        job.id: compute_usage(job, series, interval)
        for job, series in read_series(time_series, jobs)
    }
    return [usages[job.id] for job in jobs]
