"""The one way to a job's past measurements, wherever they are kept."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class HistoryError(Exception):
    """The store of measurements does not answer, or not as agreed; worth another try later."""


class Span(NamedTuple):
    """A job's series, and the time in which they are this run's."""

    cluster: str
    jobid: str
    start: int  # epoch seconds
    until: int
    alone: bool = False  # another run of this jobid is near: nothing outside may be looked at


class Statistic(StrEnum):
    """What is wanted of a series over a span."""

    TOTAL = "total"  # of a counter: its last value, and what it had before each reset
    PEAK = "peak"
    MEAN = "mean"
    COUNT = "count"  # number of samples


class Sample(NamedTuple):
    """One number with the labels it came under, replicas already folded into one."""

    metric: str
    labels: Mapping[str, str]
    value: float  # may be NaN, where the store says so


class Series(NamedTuple):
    """A course of values."""

    metric: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]  # (epoch seconds, value)


class History(Protocol):
    """Past measurements of jobs."""

    source: str
    """Its name in `job_usage.source`."""

    def measure(
        self, statistic: Statistic, metrics: Sequence[str], spans: Sequence[Span]
    ) -> list[Sample]:
        """One number per series of the jobs' `metrics`; no series, no sample.

        Raises HistoryError.
        """
        ...

    def series(self, metrics: Sequence[str], span: Span, step: float) -> list[Series]:
        """The course of one job's `metrics`, a value every `step` seconds.

        Raises HistoryError.
        """
        ...
