"""Types for the tables of the cluster's metrics, and histograms."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from collectors.metric import Labels, Metric, MetricFamily, join, labels

Row = tuple[Any, ...]
"""The values of a metric's labels, and then its number; None makes no sample."""


class ClusterMetric(NamedTuple):
    """A family and the function that makes the rows of its samples from a reading."""

    metric: Metric
    rows: Callable[[Any], Iterable[Row]]
    per_user: bool = False  # one series per user


def own_metric(
    name: str, kind: Literal["gauge", "counter", "histogram"], help: str, *label_names: str
) -> Metric:
    """A metric of the cluster, `batchjob_cluster_<name>`."""
    return Metric(f"batchjob_cluster_{name}", kind, help, label_names)


def _row(
    kind: Literal["gauge", "counter"],
    name: str,
    rows: Callable[[Any], Iterable[Row]],
    help: str,
    *label_names: str,
    **marks: bool,
) -> ClusterMetric:
    """A row of a metric of the cluster; `marks`: `per_user`."""
    return ClusterMetric(own_metric(name, kind, help, *label_names), rows, **marks)


gauge, counter = partial(_row, "gauge"), partial(_row, "counter")


def totals(rows: Iterable[Row]) -> Iterator[Row]:
    """One row for all that have the same labels, with the sum of their numbers, in order."""
    sums: defaultdict[Row, float] = defaultdict(float)
    for *values, number in rows:
        if number is not None:
            sums[tuple(values)] += number
    for key, total in sorted(sums.items()):
        yield *key, total


BUCKET_BOUNDS = (10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
"""Upper bounds of the buckets in seconds; the last bucket has none."""


class Histogram(NamedTuple):
    """Counts of durations by bucket, and their sum in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BUCKET_BOUNDS) + 1)
    seconds: float = 0.0

    def plus(self, seconds: float) -> "Histogram":
        counts = list(self.counts)
        counts[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        return Histogram(tuple(counts), self.seconds + seconds)


def histogram_families(
    metric: Metric, by_labels: Mapping[Labels, Histogram]
) -> Iterator[MetricFamily]:
    """The families of histograms, grouped by label set as OpenMetrics requires."""
    for own_labels, histogram in sorted(by_labels.items()):
        cumulative_count = 0
        buckets = []
        for bound, count in zip(
            (*map(float, BUCKET_BOUNDS), "+Inf"), histogram.counts, strict=True
        ):
            cumulative_count += count
            buckets.append((join(own_labels, labels(le=str(bound))), float(cumulative_count)))
        yield MetricFamily(metric, buckets, "_bucket")
        yield MetricFamily(metric, [(own_labels, float(cumulative_count))], "_count")
        yield MetricFamily(metric, [(own_labels, histogram.seconds)], "_sum")
