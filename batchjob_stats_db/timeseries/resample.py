"""Totals of counters across resets, and minima, means and maxima in intervals of equal length."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile, pairwise
from typing import NamedTuple

from batchjob_stats_db.timeseries.base import JobWindow, Point, SeriesQuery, TimeSeries

Points = list[tuple[float, float]]  # (epoch seconds, value)
Identity = tuple[tuple[str, str], ...]  # labels that identify a series


# VictoriaMetrics stores decimal mantissas, and sometimes returns a constant 5.070736989 as
# 5.070736988999999: that is not a reset. None of our counters decreases by so little.
_NOISE = 1e-9

_ROUNDED_SECONDS = 0.01  # times of samples are: one may seem later than its interval's end
CARRIED_SECONDS = 900  # how long before a rerun to look for the last value of the previous run


def is_reset(before: float, after: float) -> bool:
    return after < before - _NOISE * abs(before)


def own_samples(
    points: Sequence[tuple[float, float]], start: float, continues: bool = False
) -> Sequence[tuple[float, float]]:
    """The samples of the run that began at `start`.

    A counter that a rerun continues shows its predecessor's last value until the new run's
    processes exist; these first samples do not belong to the run. If the run `continues` one as a
    part of a resized job, the values are the growth since the last sample of the part before.
    """
    carried = next((value for at, value in reversed(points) if at < start), None)
    own = [point for point in points if point[0] >= start]
    if continues:
        return list(_growth(own, carried or 0.0))
    if carried is None:
        return own
    return list(dropwhile(lambda point: math.isclose(point[1], carried, rel_tol=_NOISE), own))


def _growth(points: Sequence[tuple[float, float]], before: float) -> Iterator[tuple[float, float]]:
    """The growth of a counter since it had a value, across resets."""
    total = 0.0
    for at, value in points:
        total += _increase(before, value)
        before = value
        yield at, total


def _increase(before: float, value: float) -> float:
    growth = value - before
    return growth if growth >= 0 else value if is_reset(before, value) else 0.0


def total_of(
    points: Sequence[tuple[float, float]], start: float, continues: bool = False
) -> float | None:
    """The increase of a counter from `start` on, across resets; None without a sample."""
    own = [value for _, value in own_samples(points, start, continues)]
    if not own:
        return None
    before_resets = sum(value for value, after in pairwise(own) if is_reset(value, after))
    return before_resets + own[-1]


def samples_around_resets(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The first and last sample, and those around each reset; their total is the same."""
    kept = {0, len(points) - 1} if points else set()
    for number, ((_, before), (_, after)) in enumerate(pairwise(points)):
        if is_reset(before, after):
            kept |= {number, number + 1}
    return [points[number] for number in sorted(kept)]


class Bins(NamedTuple):
    """A period divided into intervals of equal length."""

    start: float
    end: float
    bin_count: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / self.bin_count

    def index_at(self, at: float) -> int:
        """The index of the interval of a moment; each interval includes its last moment."""
        index = math.ceil((at - self.start) / self.seconds) - 1
        return min(max(index, 0), self.bin_count - 1)

    def end_of(self, index: int) -> float:
        return self.start + (index + 1) * self.seconds


def equal_bins(window: JobWindow, most: int, interval: float) -> Bins:
    """At most this many intervals, none shorter than the time between two samples."""
    start = max(window.start, window.display_range[0])
    end = min(window.end if window.end is not None else window.until, window.display_range[1])
    end = max(end, start + 1)
    return Bins(start, end, max(1, min(most, int((end - start) / interval))))


class Segment(NamedTuple):
    """A period in which a counter grew evenly, as far as is known."""

    begin: float
    end: float
    rate: float


def growth_segments(points: Points, window: JobWindow, gap: float) -> list[Segment]:
    """The growth of a job's counter from sample to sample, across resets.

    It was zero when the job began, or counts from there for a part of it, and a value read after
    the end is that of the end. Nothing is known between samples farther apart than `gap`.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    own = own_samples(finite, window.start, window.continues)
    begin = float(window.start)
    if window.continues:
        begin = max((at for at, _ in finite if at < begin), default=begin)
    knots = [(begin, 0.0), *own]
    if window.end is not None and knots[-1][0] > window.end:
        knots = [knot for knot in knots if knot[0] < window.end] + [(window.end, knots[-1][1])]
    return [
        Segment(begin, end, _increase(before, value) / (end - begin))
        for (begin, before), (end, value) in pairwise(knots)
        if 0 < end - begin <= gap
    ]


def sum_segments(series: Sequence[Sequence[Segment]]) -> list[Segment]:
    """The sum of several series of segments: at each time, of the rates known then."""
    if len(series) == 1:
        return list(series[0])
    changes: dict[float, tuple[int, float]] = {}
    for piece in (piece for each in series for piece in each):
        for at, number, rate in ((piece.begin, 1, piece.rate), (piece.end, -1, -piece.rate)):
            count, change = changes.get(at, (0, 0.0))
            changes[at] = (count + number, change + rate)
    segments = []
    count, rate = 0, 0.0
    for begin, end in pairwise(sorted(changes)):
        count, rate = count + changes[begin][0], rate + changes[begin][1]
        if count:
            segments.append(Segment(begin, end, max(0.0, rate)))
    return segments


def mean_rates(parts: Iterable[Segment], bins: Bins) -> list[Point]:
    weighted: dict[int, list[tuple[float, float]]] = {}  # (seconds, rate)
    for part in parts:
        for index in range(bins.index_at(math.nextafter(part.begin, math.inf)), bins.bin_count):
            begin = max(part.begin, bins.end_of(index - 1))
            seconds = min(part.end, bins.end_of(index)) - begin
            if seconds <= 0:
                break
            weighted.setdefault(index, []).append((seconds, part.rate))
    return _points(weighted, bins)


def rate_series(
    series: Iterable[tuple[Identity, Points]],
    query: SeriesQuery,
    window: JobWindow,
    bins: Bins,
    gap: float,
) -> list[TimeSeries]:
    """The rates of series; those that differ only in the summed labels are added up."""
    groups: dict[Identity, list[list[Segment]]] = {}
    for identity, points in series:
        kept = tuple(each for each in identity if each[0] not in query.summed)
        groups.setdefault(kept, []).append(growth_segments(points, window, gap))
    return [
        TimeSeries(dict(kept), mean_rates(sum_segments(each), bins))
        for kept, each in groups.items()
    ]


def gauge_points(points: Points, bins: Bins) -> list[Point]:
    """Minimum, mean and maximum of a gauge in each interval."""
    weighted: dict[int, list[tuple[float, float]]] = {}
    for at, value in points:
        if bins.start <= at <= bins.end and math.isfinite(value):
            weighted.setdefault(bins.index_at(at - _ROUNDED_SECONDS), []).append((1.0, value))
    return _points(weighted, bins)


def _points(weighted: Mapping[int, Sequence[tuple[float, float]]], bins: Bins) -> list[Point]:
    """The points of intervals, from weights and values."""
    points = []
    for index, pairs in sorted(weighted.items()):
        numbers = [value for _, value in pairs]
        low, high = min(numbers), max(numbers)
        total = math.fsum(weight * value for weight, value in pairs)
        mean = total / math.fsum(weight for weight, _ in pairs)
        # Rounding may put the mean outside.
        points.append(Point(bins.end_of(index), low, min(max(mean, low), high), high))
    return points


def merge_replicas(copies: Sequence[Points], gap: float) -> Points:
    """One series from several replicas: the most complete one, with the others in its gaps."""
    whole = max(sorted(copies), key=len)  # the same one in any order
    for copy in copies:
        times = [at for at, _ in whole]
        whole = sorted([*whole, *(point for point in copy if _is_far(point[0], times, gap))])
    return whole


def _is_far(at: float, times: Sequence[float], gap: float) -> bool:
    place = bisect_left(times, at)
    return all(abs(at - near) > gap for near in times[max(0, place - 1) : place + 1])
