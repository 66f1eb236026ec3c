"""Many jobs measured in as few queries as possible, none in another's way.

An answer tells jobs apart by their id alone, and is held in memory until all of it is used.
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

_NODES_AT_ONCE = 4000  # some 40 series each, half a kilobyte
_MOST_FAILED = 10  # in a row, none measured: then it is the store that fails


class Outcome(NamedTuple):
    """What came of measuring some jobs."""

    usages: Mapping[JobToMeasure, MeasuredUsage]
    failed: Mapping[JobToMeasure, Exception]


def measure_apart(
    history: TimeSeriesStore,
    jobs: Sequence[JobToMeasure],
    interval: float,
    alive: Callable[[], None] = lambda: None,
) -> Outcome:
    """Measure jobs so that one that cannot be measured is in no other's way.

    Where a question fails, its jobs are asked for in halves. `alive` is called between questions,
    which may take long. Raises TimeSeriesError when the store fails, whatever is asked.
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
        except Exception as error:  # of our own, or out of memory: it is this job's alone
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
    """Measure jobs, in their order and in as few questions as possible; raises TimeSeriesError."""
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
    """Of nodes that fell silent long ago, and did not tell of the job's end."""
    silent = [
        job.span
        for job in group
        if any(node.latest is None and node.end is None for node in nodes_of(found[job.jobid]))
    ]
    if silent:
        for sample in history.last_sampled([PRESENT], silent):
            found[sample.labels.get("jobid", "")][Statistic.LATEST, PRESENT].append(sample)


def _groups(jobs: Sequence[JobToMeasure]) -> Iterator[list[JobToMeasure]]:
    """An answer tells jobs apart by their id alone: no two runs of one id are in a group."""
    runs: dict[str, int] = defaultdict(int)  # how many of an id have come
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
    """What is found for a group is held until all of it is, so it has a limited number of nodes."""
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
