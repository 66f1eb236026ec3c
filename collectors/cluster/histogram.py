"""Histograms of durations that only grow, and their families."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from collectors.metric import Labels, Metric, MetricFamily, join, labels

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
