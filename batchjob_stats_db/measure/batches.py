"""Measures many jobs in as few queries as possible, with each job's errors isolated.

An answer identifies jobs by their id alone, and is held in memory until all of it is used.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.isolation import isolate_failures
from batchjob_stats_db.measure.job_usage import (
    METRICS,
    PRESENCE_METRIC,
    JobSeries,
    JobToMeasure,
    MeasuredUsage,
    compute_usage,
    returned_at,
    samples_by_node,
)
from batchjob_stats_db.timeseries.base import (
    QueryFailed,
    SeriesValue,
    TimeSeriesError,
    TimeSeriesStore,
)

_NODES_PER_QUERY = 4000  # about 40 series per node, of half a kilobyte
_MAX_FAILURES = 10  # failures without a measured job: then the store itself fails


Outcome = tuple[dict[JobToMeasure, MeasuredUsage], dict[JobToMeasure, Exception]]
"""The usages of the jobs that could be measured, and the errors of the others."""


def measure_isolated(
    time_series: TimeSeriesStore,
    jobs: Sequence[JobToMeasure],
    interval: float,
    on_progress: Callable[[], None] = lambda: None,
    series_by_job: dict[JobToMeasure, JobSeries] | None = None,
) -> Outcome:
    """Measure jobs so that one that cannot be measured does not affect the others.

    If a query fails, its jobs are queried in halves. `on_progress` is called before each query,
    which may take long; `series_by_job` is given the statistics of each job's series. Raises
    TimeSeriesError if the store fails for every query.
    """
    usages: dict[JobToMeasure, MeasuredUsage] = {}

    def measure_part(part: Sequence[JobToMeasure]) -> None:
        on_progress()
        for job, series in read_series(time_series, part):
            usages[job] = compute_usage(job, series, interval)
            if series_by_job is not None:
                series_by_job[job] = series

    def is_the_stores(error: Exception, failed: int) -> bool:
        if isinstance(error, QueryFailed):
            return failed >= _MAX_FAILURES and not usages
        return isinstance(error, TimeSeriesError)

    others = [job for job in jobs if not job.failed_before]
    failed = isolate_failures(others, measure_part, is_the_stores)
    for job in jobs:
        if job.failed_before:
            failed |= isolate_failures([job], measure_part, is_the_stores)
    return usages, failed


def read_series(
    time_series: TimeSeriesStore, jobs: Sequence[JobToMeasure]
) -> Iterator[tuple[JobToMeasure, JobSeries]]:
    """The statistics of each job's series, in as few queries as possible.

    Raises TimeSeriesError.
    """
    for group in _group_jobs(jobs):
        windows = [job.window for job in group]
        series: dict[str, JobSeries] = defaultdict(lambda: defaultdict(list))
        for statistic, samples in time_series.measure(METRICS, windows).items():
            for sample in samples:
                series[sample.labels.get("jobid", "")][statistic, sample.metric].append(sample)
        for job in group:
            _leave_out_returned(time_series, job, series)
        _add_last_samples(time_series, group, series)
        yield from ((job, series[job.jobid]) for job in group)


def _leave_out_returned(
    time_series: TimeSeriesStore, job: JobToMeasure, series: dict[str, JobSeries]
) -> None:
    """Take the series of nodes that a job gave back from the time until then only."""
    for until in {at for _, at in job.returned}:
        window = job.window._replace(
            until=max(until, job.start + 1), end=until, near_other_run=True
        )
        for statistic, samples in time_series.measure(METRICS, [window]).items():
            for metric in METRICS[statistic]:
                values = series[job.jobid][statistic, metric]
                values[:] = [each for each in values if returned_at(job, _node(each)) != until]
                values += [
                    each
                    for each in samples
                    if each.metric == metric and returned_at(job, _node(each)) == until
                ]


def _node(sample: SeriesValue) -> str:
    return sample.labels.get("instance", "")


def _add_last_samples(
    time_series: TimeSeriesStore, group: Sequence[JobToMeasure], series: Mapping[str, JobSeries]
) -> None:
    """Add the last samples of nodes that stopped long ago without reporting the job's end."""
    silent = [
        job.window
        for job in group
        if any(
            node.latest is None and node.end is None for node in samples_by_node(series[job.jobid])
        )
    ]
    if silent:
        for sample in time_series.last_sample_times([PRESENCE_METRIC], silent):
            series[sample.labels.get("jobid", "")][Statistic.LATEST, PRESENCE_METRIC].append(sample)


def _group_jobs(jobs: Sequence[JobToMeasure]) -> Iterator[list[JobToMeasure]]:
    """Groups of jobs, none with two runs of one id, since an answer identifies jobs by id."""
    runs: dict[str, int] = defaultdict(int)  # runs seen so far of each jobid
    groups: dict[int, list[JobToMeasure]] = defaultdict(list)
    for job in jobs:
        if job.window.near_other_run:
            yield [job]
            continue
        groups[runs[job.jobid]].append(job)
        runs[job.jobid] += 1
    for group in groups.values():
        yield from _limit_nodes(group)


def _limit_nodes(jobs: Sequence[JobToMeasure]) -> Iterator[list[JobToMeasure]]:
    """Groups with a limited number of nodes, since the answer for a group is held in memory."""
    group: list[JobToMeasure] = []
    nodes = 0
    for job in jobs:
        if group and nodes + job.window.nodes > _NODES_PER_QUERY:
            yield group
            group, nodes = [], 0
        group.append(job)
        nodes += job.window.nodes
    if group:
        yield group
