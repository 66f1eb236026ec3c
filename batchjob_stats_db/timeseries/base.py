"""The one way to a job's past measurements, wherever they are kept."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from batchjob.quantities.quantity import SeriesKind, Statistic


class TimeSeriesError(Exception):
    """The store of measurements does not answer, or not as agreed; worth another try later."""


class QuestionFailed(TimeSeriesError):
    """The store answers, but not this question: it is too much for it, or refused."""


class JobWindow(NamedTuple):
    """A job's series, and the time in which they are this run's."""

    cluster: str
    jobid: str
    start: int  # epoch seconds
    until: int
    alone: bool = False  # another run of this jobid is near: nothing outside may be looked at
    end: int | None = None  # what is seen after it, is of that moment; None: the job runs
    nodes: int = 1
    clear: tuple[float, float] = (-math.inf, math.inf)  # no other run of this jobid is in this time
    drawn: tuple[float, float] = (-math.inf, math.inf)  # courses are wanted of this part alone

    @property
    def drawn_at_all(self) -> bool:
        """Whether the job's time overlaps the part to draw."""
        begin, end = self.drawn
        last = self.until if self.end is None else self.end
        return begin < end and begin <= last and end > self.start


class SeriesValue(NamedTuple):
    """One number with the labels it came under, replicas already folded into one."""

    metric: str
    labels: Mapping[str, str]
    value: float  # may be NaN, where the store says so


class SeriesQuery(NamedTuple):
    """Series whose course is wanted: those of a cluster that have one of the values of each label.

    A job's own series are asked for by its `jobid`; those of devices by `uuid`.
    """

    metric: str
    kind: SeriesKind
    where: Mapping[str, Sequence[str]]
    summed: tuple[str, ...] = ()  # rates that differ in these labels alone are added up


class NodeQuery(NamedTuple):
    """Series of a node's exporter whose course is wanted.

    Series that differ in `summed` alone are added up; those that differ in `by` are told apart.
    """

    metric: str
    kind: SeriesKind
    where: Mapping[str, Sequence[str]] = {}
    by: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()


class Point(NamedTuple):
    """What was seen in the stretch of time that ends at `time`."""

    time: float  # epoch seconds
    low: float
    mean: float
    high: float


class TimeSeries(NamedTuple):
    """A series over a span; where nothing was seen, there is no point."""

    labels: Mapping[str, str]
    points: Sequence[Point]


class TimeSeriesStore(Protocol):
    """Past measurements of jobs."""

    source: str
    """Its name in `job_usage.source`."""

    def measure(
        self, wanted: Mapping[Statistic, Sequence[str]], spans: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        """Of each statistic one number per series of its metrics; no series, no sample.

        Raises TimeSeriesError.
        """
        ...

    def last_sampled(self, metrics: Sequence[str], spans: Sequence[JobWindow]) -> list[SeriesValue]:
        """When each series had its last sample, in epoch seconds; of a long span about.

        Costs more than `Statistic.LATEST`, which leaves out what was long ago. Raises
        TimeSeriesError.
        """
        ...

    def courses(self, asked: SeriesQuery, span: JobWindow, stretches: int) -> list[TimeSeries]:
        """The courses over `span`, in that many stretches of equal length or fewer.

        Raises TimeSeriesError.
        """
        ...

    def latest(
        self, cluster: str, metrics: Sequence[str], now: float, instance: str = ""
    ) -> list[SeriesValue]:
        """The last values of series of a cluster's nodes and accounts, with all their labels.

        None that is older than some scrapes. Of one target alone where `instance` names it. Raises
        TimeSeriesError.
        """
        ...

    def seen(self, cluster: str, metric: str, now: float, seconds: int) -> list[SeriesValue]:
        """For each `instance` the part, 0 to 1, of the scrapes of the last `seconds` that had it.

        Raises TimeSeriesError.
        """
        ...

    def of_node(
        self, asked: NodeQuery, cluster: str, instance: str, since: int, until: int, points: int
    ) -> list[TimeSeries]:
        """The series of a node over time, at most `points` means each.

        Raises TimeSeriesError.
        """
        ...
