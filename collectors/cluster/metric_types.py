"""What the cluster's metric families are made from: rows of tables, and histograms."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from collectors.metric import Labels, Metric, MetricFamily, join, labels

Samples = Iterable[tuple[Labels, float | None]]


class ClusterMetric(NamedTuple):
    """A family and the function that makes its samples from a reading; None makes no sample."""

    metric: Metric
    samples: Callable[[Any], Samples]
    native: bool = False  # also exposed by Slurm 25.11 and later (its metrics.html)
    on_demand: bool = False  # one series per user


def gauge(name: str, help: str, *names: str) -> Metric:
    """A gauge of the cluster; `names` are its labels."""
    return Metric(f"batchjob_cluster_{name}", "gauge", help, names)


def counter(name: str, help: str, *names: str) -> Metric:
    """A counter of the cluster; `names` are its labels."""
    return Metric(f"batchjob_cluster_{name}", "counter", help, names)


def counted(counts: Mapping[tuple[str, ...], float], *names: str) -> Samples:
    """A sample for each key, whose parts are the values of the labels `names`."""
    for values, number in sorted(counts.items()):
        yield labels(**dict(zip(names, values, strict=True))), float(number)


BOUNDS = (10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
"""Seconds; the last bucket has no bound."""


class Histogram(NamedTuple):
    """Counts of durations by bucket, and their sum in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    def plus(self, seconds: float) -> "Histogram":
        """The histogram with one more duration."""
        counts = list(self.counts)
        counts[bisect_left(BOUNDS, seconds)] += 1
        return Histogram(tuple(counts), self.seconds + seconds)


def families(metric: Metric, by_labels: Mapping[Labels, Histogram]) -> Iterator[MetricFamily]:
    """All samples of one label set in sequence, as OpenMetrics requires."""
    for own, histogram in sorted(by_labels.items()):
        total = 0
        buckets = []
        for bound, number in zip((*map(float, BOUNDS), "+Inf"), histogram.counts, strict=True):
            total += number
            buckets.append((join(own, labels(le=str(bound))), float(total)))
        yield MetricFamily(metric, buckets, "_bucket")
        yield MetricFamily(metric, [(own, float(total))], "_count")
        yield MetricFamily(metric, [(own, histogram.seconds)], "_sum")
