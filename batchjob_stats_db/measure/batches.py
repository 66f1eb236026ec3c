"""Measures many jobs in as few queries as possible, with each job's errors isolated.

An answer identifies jobs by their id alone, and is held in memory until all of it is used.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.measure.job_usage import (
    METRICS,
    PRESENT,
    Found,
    JobToMeasure,
    MeasuredUsage,
    nodes_of,
    usage_of,
)
from batchjob_stats_db.timeseries.base import QuestionFailed, TimeSeriesError, TimeSeriesStore

_NODES_AT_ONCE = 4000  # about 40 series per node, of half a kilobyte
_MOST_FAILED = 10  # failures without a measured job: then the store itself fails


class Outcome(NamedTuple):
    """The result of measuring some jobs."""

    usages: Mapping[JobToMeasure, MeasuredUsage]
    failed: Mapping[JobToMeasure, Exception]


def measure_apart(
    history: TimeSeriesStore,
    jobs: Sequence[JobToMeasure],
    interval: float,
    alive: Callable[[], None] = lambda: None,
) -> Outcome:
    """Measure jobs so that one that cannot be measured does not affect the others.

    If a query fails, its jobs are queried in halves. `alive` is called between queries, which may
    take long. Raises TimeSeriesError if the store fails for every query.
    """
    usages: dict[JobToMeasure, MeasuredUsage] = {}
    failed: dict[JobToMeasure, Exception] = {}
    left = [[job] for job in jobs if job.failed_before]
    left += [together] if (together := [job for job in jobs if not job.failed_before]) else []
    while left:
        part = left.pop()
        alive()
        try:
            usages.update(zip(part, measure(history, part, interval), strict=True))
        except QuestionFailed as error:
            if len(part) == 1:
                failed[part[0]] = error
                if len(failed) > _MOST_FAILED and not usages:
                    raise
        except TimeSeriesError:
            raise
        except Exception as error:  # a bug of ours, or out of memory: only this job is affected
            if len(part) == 1:
                failed[part[0]] = error
        else:
            continue
        if len(part) > 1:
            left += [part[len(part) // 2 :], part[: len(part) // 2]]
    return Outcome(usages, failed)


def measure(
    history: TimeSeriesStore,
    jobs: Sequence[JobToMeasure],
    interval: float,
) -> list[MeasuredUsage]:
    """Measure jobs, in order and in as few queries as possible; raises TimeSeriesError."""
    usages: dict[int, MeasuredUsage] = {}
    for group in _groups(jobs):
        spans = [job.span for job in group]
        found: dict[str, Found] = defaultdict(lambda: defaultdict(list))
        for statistic, samples in history.measure(METRICS, spans).items():
            for sample in samples:
                found[sample.labels.get("jobid", "")][statistic, sample.metric].append(sample)
        _add_last_samples(history, group, found)
        usages |= {job.id: usage_of(job, found[job.jobid], interval) for job in group}
    return [usages[job.id] for job in jobs]


def _add_last_samples(
    history: TimeSeriesStore, group: Sequence[JobToMeasure], found: Mapping[str, Found]
) -> None:
    """Add the last samples of nodes that stopped long ago without reporting the job's end."""
    silent = [
        job.span
        for job in group
        if any(node.latest is None and node.end is None for node in nodes_of(found[job.jobid]))
    ]
    if silent:
        for sample in history.last_sampled([PRESENT], silent):
            found[sample.labels.get("jobid", "")][Statistic.LATEST, PRESENT].append(sample)


def _groups(jobs: Sequence[JobToMeasure]) -> Iterator[list[JobToMeasure]]:
    """Groups of jobs, none with two runs of one id, since an answer identifies jobs by id."""
    runs: dict[str, int] = defaultdict(int)  # runs seen so far of each jobid
    together: dict[int, list[JobToMeasure]] = defaultdict(list)
    for job in jobs:
        if job.span.alone:
            yield [job]
            continue
        together[runs[job.jobid]].append(job)
        runs[job.jobid] += 1
    for group in together.values():
        yield from _small_groups(group)


def _small_groups(jobs: Sequence[JobToMeasure]) -> Iterator[list[JobToMeasure]]:
    """Groups with a limited number of nodes, since the answer for a group is held in memory."""
    group: list[JobToMeasure] = []
    nodes = 0
    for job in jobs:
        if group and nodes + job.span.nodes > _NODES_AT_ONCE:
            yield group
            group, nodes = [], 0
        group.append(job)
        nodes += job.span.nodes
    if group:
        yield group
