"""Resamples series into intervals of equal length: minima, means and maxima."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from batchjob_stats_db.timeseries.base import JobWindow, Point, SeriesQuery, TimeSeries
from batchjob_stats_db.timeseries.counters import fell, own_samples

Points = list[tuple[float, float]]  # (epoch seconds, value)
Identity = tuple[tuple[str, str], ...]  # labels that identify a series


class Bins(NamedTuple):
    """A period divided into intervals of equal length."""

    start: float
    end: float
    many: int

    @property
    def seconds(self) -> float:
        """Length of each."""
        return (self.end - self.start) / self.many

    def number(self, at: float) -> int:
        """The index of the interval of a moment; each interval includes its last moment."""
        number = math.ceil((at - self.start) / self.seconds) - 1
        return min(max(number, 0), self.many - 1)

    def ends(self, number: int) -> float:
        """When one ends."""
        return self.start + (number + 1) * self.seconds


def bins(span: JobWindow, most: int, interval: float) -> Bins:
    """At most this many intervals, none shorter than the time between two samples."""
    start = max(span.start, span.drawn[0])
    end = min(span.end if span.end is not None else span.until, span.drawn[1])
    end = max(end, start + 1)
    return Bins(start, end, max(1, min(most, int((end - start) / interval))))


class Segment(NamedTuple):
    """A period in which a counter grew evenly, as far as is known."""

    begin: float
    end: float
    rate: float


def pieces(points: Points, span: JobWindow, gap: float) -> list[Segment]:
    """The growth of a job's counter from sample to sample, across resets.

    It was zero when the job began, and a value read after the end is that of the end. Nothing is
    known between samples farther apart than `gap`.
    """
    own = own_samples([point for point in points if math.isfinite(point[1])], span.start)
    knots = [(float(span.start), 0.0), *own]
    if span.end is not None and knots[-1][0] > span.end:
        knots = [knot for knot in knots if knot[0] < span.end] + [(span.end, knots[-1][1])]
    return [
        Segment(
            begin, end, (value if fell(before, value) else max(0.0, value - before)) / (end - begin)
        )
        for (begin, before), (end, value) in pairwise(knots)
        if 0 < end - begin <= gap
    ]


def added(series: Sequence[Sequence[Segment]]) -> list[Segment]:
    """The sum of rates, of those that are known at each time."""
    if len(series) == 1:
        return list(series[0])
    changes: dict[float, tuple[int, float]] = {}
    for piece in (piece for each in series for piece in each):
        for at, number, rate in ((piece.begin, 1, piece.rate), (piece.end, -1, -piece.rate)):
            count, change = changes.get(at, (0, 0.0))
            changes[at] = (count + number, change + rate)
    made = []
    count, rate = 0, 0.0
    for begin, end in pairwise(sorted(changes)):
        count, rate = count + changes[begin][0], rate + changes[begin][1]
        if count:
            made.append(Segment(begin, end, max(0.0, rate)))
    return made


def rates(parts: Iterable[Segment], cut: Bins) -> list[Point]:
    """The mean rate in each interval: the growth of the counter within it."""
    seen: dict[int, list[tuple[float, float]]] = {}  # (seconds, rate)
    for part in parts:
        for number in range(cut.number(math.nextafter(part.begin, math.inf)), cut.many):
            begin = max(part.begin, cut.ends(number - 1))
            seconds = min(part.end, cut.ends(number)) - begin
            if seconds <= 0:
                break
            seen.setdefault(number, []).append((seconds, part.rate))
    return [_point(cut.ends(number), held) for number, held in sorted(seen.items())]


def together(
    series: Iterable[tuple[Identity, Points]],
    asked: SeriesQuery,
    span: JobWindow,
    cut: Bins,
    gap: float,
) -> list[TimeSeries]:
    """The rates of series; those that differ only in the summed labels are added up."""
    groups: dict[Identity, list[list[Segment]]] = {}
    for identity, points in series:
        kept = tuple(each for each in identity if each[0] not in asked.summed)
        groups.setdefault(kept, []).append(pieces(points, span, gap))
    return [TimeSeries(dict(kept), rates(added(each), cut)) for kept, each in groups.items()]


def values(points: Points, cut: Bins) -> list[Point]:
    """A gauge in each interval."""
    seen: dict[int, list[tuple[float, float]]] = {}
    for at, value in points:
        if cut.start <= at <= cut.end and math.isfinite(value):
            seen.setdefault(cut.number(at), []).append((1.0, value))
    return [_point(cut.ends(number), held) for number, held in sorted(seen.items())]


def _point(time: float, held: Sequence[tuple[float, float]]) -> Point:
    numbers = [value for _, value in held]
    low, high = min(numbers), max(numbers)
    weight = math.fsum(seconds for seconds, _ in held)
    mean = math.fsum(seconds * value for seconds, value in held) / weight
    return Point(time, low, min(max(mean, low), high), high)  # rounding may put the mean outside


def merged(copies: Sequence[Points], gap: float) -> Points:
    """One series from several replicas: the most complete one, with the others in its gaps."""
    whole = max(sorted(copies), key=len)  # the same one in any order
    for copy in copies:
        times = [at for at, _ in whole]
        whole = sorted([*whole, *(point for point in copy if _far(point[0], times, gap))])
    return whole


def _far(at: float, times: Sequence[float], gap: float) -> bool:
    place = bisect_left(times, at)
    return all(abs(at - near) > gap for near in _neighbours(times, place))


def _neighbours(times: Sequence[float], place: int) -> Iterator[float]:
    yield from times[max(0, place - 1) : place + 1]
