"""The statistics of one series, updated sample by sample."""

import math

from batchjob.quantities.quantity import Statistic


class Tally:
    """Processes a number from one change to the next: all samples between had the same value."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._since = 0  # number of the first sample with this value
        self._latest: float | None = None  # time of the last sample
        self._count = 0
        self._sum = 0.0
        self._peak = -math.inf
        self._carried: float | None = None
        self._total: float | None = None  # if it is a counter
        self._before_resets = 0.0

    def carry(self, value: float | None) -> None:
        """Set the value before the period, which an earlier run may have left."""
        self._carried = value

    def change(self, number: int, value: float | None, before: float) -> None:
        """From this sample on it is `value`; None: it is missing. `before`: see `end()`."""
        self.end(number, before)
        self._value = value
        if value is None:
            return
        self._peak = max(self._peak, value)
        if self._total is None and value == self._carried:
            return
        if self._total is not None and value < self._total:
            self._before_resets += self._total
        self._total = value

    def end(self, number: int, before: float) -> None:
        """End the value before this sample; `before` is the time of the previous sample."""
        if self._value is not None and number > self._since:
            self._latest = before
            self._count += number - self._since
            self._sum += self._value * (number - self._since)
        self._since = number

    def statistic(self, statistic: Statistic) -> float | None:
        """The requested statistic; None without a sample."""
        if not self._count:
            return None
        if statistic is Statistic.TOTAL:
            return None if self._total is None else self._before_resets + self._total
        if statistic is Statistic.RESET:
            return self._before_resets or None
        if statistic is Statistic.LATEST:
            return self._latest
        return {
            Statistic.PEAK: self._peak,
            Statistic.MEAN: self._sum / self._count,
            Statistic.COUNT: float(self._count),
        }[statistic]
