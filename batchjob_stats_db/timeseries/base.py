"""The interface to a job's past measurements, wherever they are stored."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from batchjob.quantities.quantity import SeriesKind, Statistic

EXPORTER = "batchjob_node_cpus"  # each node's exporter has exactly one series of it


class TimeSeriesError(Exception):
    """The store does not answer, or not as expected; a retry may succeed."""


class QueryFailed(TimeSeriesError):
    """The store works, but this query failed: it is too expensive, or was rejected."""


class JobWindow(NamedTuple):
    """A job's series, and the time in which they belong to this run."""

    cluster: str
    jobid: str
    start: int  # epoch seconds
    until: int
    # Another run of this jobid is close in time: no samples outside the window may be used.
    near_other_run: bool = False
    end: int | None = None  # a sample after it counts as of this time; None: the job is running
    nodes: int = 1
    free_range: tuple[float, float] = (-math.inf, math.inf)  # contains no other run of this jobid
    display_range: tuple[float, float] = (-math.inf, math.inf)  # of the points wanted
    continues: bool = False  # a part of a resized job: its counters go on from the part before

    @property
    def is_displayed(self) -> bool:
        begin, end = self.display_range
        last = self.until if self.end is None else self.end
        return begin < end and begin <= last and end > self.start


class SeriesValue(NamedTuple):
    """One number with its labels; replicas are already merged."""

    metric: str
    labels: Mapping[str, str]
    value: float  # may be NaN, if the store returns it


class SeriesQuery(NamedTuple):
    """Series to be read over time: those with one of the values of each label in `where`.

    A job's own series are selected by `jobid`; those of devices by `uuid`. Of a node's exporter,
    series that differ in `by` are kept apart.
    """

    metric: str
    kind: SeriesKind
    where: Mapping[str, Sequence[str]] = {}
    summed: tuple[str, ...] = ()  # series (rates of a job) that differ only in these are added up
    by: tuple[str, ...] = ()


class Point(NamedTuple):
    """What was measured in the interval that ends at `time`."""

    time: float  # epoch seconds
    low: float
    mean: float
    high: float


class TimeSeries(NamedTuple):
    """A series over time, without points where nothing was measured."""

    labels: Mapping[str, str]
    points: Sequence[Point]


class TimeSeriesStore(Protocol):
    """Past measurements of jobs."""

    source: str
    """Its name in `job_usage.source`."""

    def measure(
        self, wanted: Mapping[Statistic, Sequence[str]], windows: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        """Each statistic as one number per series of its metrics; without a series, no number.

        Raises TimeSeriesError.
        """
        ...

    def measure_cluster(
        self, wanted: Mapping[Statistic, Sequence[str]], cluster: str, since: int, until: int
    ) -> Iterator[tuple[Statistic, SeriesValue]] | None:
        """The same for all jobs of a cluster, of the samples after `since` up to `until`.

        A counter has its last value, whatever it was before; of resets there is one value, with
        the label `jobid`, for each job with a counter that was reset in this time. None: the store
        has the samples of each job apart, so that there is nothing to be gained. Raises
        TimeSeriesError, and so may each step, if the answer is slow or partial.
        """
        ...

    def last_sample_times(
        self, metrics: Sequence[str], windows: Sequence[JobWindow]
    ) -> list[SeriesValue]:
        """The time of each series' last sample in epoch seconds, approximate for a long period.

        Costs more than `Statistic.LATEST`, which leaves out old samples. Raises TimeSeriesError.
        """
        ...

    def job_series(self, query: SeriesQuery, window: JobWindow, bins: int) -> list[TimeSeries]:
        """The series over `window`, in at most this many intervals of equal length.

        Raises TimeSeriesError.
        """
        ...

    def latest(
        self, cluster: str, metrics: Sequence[str], now: float, instance: str = ""
    ) -> list[SeriesValue]:
        """The last values of series of a cluster's nodes and accounts, with all their labels.

        None older than a few scrapes. `instance`: only of this target. Raises TimeSeriesError.
        """
        ...

    def scrape_ratios(
        self, cluster: str, metric: str, now: float, seconds: int
    ) -> list[SeriesValue]:
        """The fraction, 0 to 1, of the last `seconds` in which each `instance` was scraped.

        Raises TimeSeriesError.
        """
        ...

    def node_series(
        self, query: SeriesQuery, cluster: str, instance: str, since: int, until: int, points: int
    ) -> list[TimeSeries]:
        """The series of a node over time, at most `points` means each.

        Without an `instance`, those of all nodes of the cluster. Raises TimeSeriesError.
        """
        ...
