"""Types for the tables of the cluster's metrics, and histograms."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from collectors.metric import Labels, Metric, MetricFamily, join, labels

Samples = Iterable[tuple[Labels, float | None]]


class ClusterMetric(NamedTuple):
    """A family and the function that makes its samples from a reading; None makes no sample."""

    metric: Metric
    samples: Callable[[Any], Samples]
    native: bool = False  # also exposed by Slurm 25.11 and later (its metrics.html)
    per_user: bool = False  # one series per user


def own_metric(
    name: str, kind: Literal["gauge", "counter", "histogram"], help: str, *label_names: str
) -> Metric:
    """A metric of the cluster, `batchjob_cluster_<name>`."""
    return Metric(f"batchjob_cluster_{name}", kind, help, label_names)


def _row(
    kind: Literal["gauge", "counter"],
    name: str,
    samples: Callable[[Any], Samples],
    help: str,
    *label_names: str,
    **marks: bool,
) -> ClusterMetric:
    """A row of a metric of the cluster; `marks`: `native` and `per_user`."""
    return ClusterMetric(own_metric(name, kind, help, *label_names), samples, **marks)


gauge, counter = partial(_row, "gauge"), partial(_row, "counter")


def labeled_samples(counts: Mapping[tuple[str, ...], float], *names: str) -> Samples:
    """A sample for each key, whose parts are the values of the labels `names`."""
    for values, count in sorted(counts.items()):
        yield labels(**dict(zip(names, values, strict=True))), float(count)


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
