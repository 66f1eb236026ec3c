"""What the ways to a BMC share: a thread that reads the node's power and counts failures.

A BMC is slow, and one with errors is queried less and less often.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

from batchjob.runtime.background import Observed, Refresher, lifetime
from collectors.host import Host
from collectors.metric import Metric, MetricFamily, labels
from collectors.power.meter import Meter, MeterReading

T = TypeVar("T")

_LONGEST_PAUSE = 600.0


class BmcCollector(ABC, Generic[T]):
    """The node's power according to its BMC."""

    meter: ClassVar[str]
    """Its name among the meters."""
    errors: ClassVar[Metric]
    """Failed reads, by `reasons`."""
    reasons: ClassVar[Sequence[str]]

    def __init__(
        self, host: Host, close: Callable[[], None], interval: float, timeout: float
    ) -> None:
        """Seconds between readings and for one reading; `close` ends the connection."""
        self._host = host
        self._close = close
        self._interval = interval
        self._failures: Counter[str] = Counter()
        self.refresher: Refresher[T] = Refresher(
            self.meter,
            self._read,
            interval,
            lifetime(interval, timeout),
            host.monotonic,
            longest_pause=_LONGEST_PAUSE,
        )

    def start(self) -> None:
        """Start reading."""
        self.refresher.start()

    def stop(self) -> None:
        """Stop the thread and close the connection."""
        self.refresher.stop()
        self._close()

    def meters(self) -> Sequence[Meter]:
        """The node's power, once the BMC has answered."""
        if self.refresher.latest() is None:
            return ()
        return (Meter(self.meter, "node", True, self._interval, self._meter),)

    def collect(self) -> list[MetricFamily]:
        """The last reading, unless it is too old, and the count of failures."""
        counts = [(labels(reason=each), float(self._failures[each])) for each in self.reasons]
        seen = self.refresher.latest()
        shown = () if seen is None else self._families(seen)
        return [MetricFamily(self.errors, counts), *shown]

    def _meter(self) -> MeterReading | None:
        seen = self.refresher.latest()
        return None if seen is None else self._reading(seen)

    @abstractmethod
    def _read(self) -> T:
        """Read the BMC now; counts a failure in `_failures`, and raises it."""

    @abstractmethod
    def _families(self, seen: Observed[T]) -> Iterable[MetricFamily]:
        """The metrics of a reading."""

    @abstractmethod
    def _reading(self, seen: Observed[T]) -> MeterReading:
        """The node's power in a reading."""
