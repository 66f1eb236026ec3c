"""What the ways to a BMC share: a thread that reads the node's power, and counts why it could not.

A BMC is slow, and one in trouble is asked less and less often.
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
    """The node's power as its BMC says."""

    meter: ClassVar[str]
    """Its name among the meters."""
    errors: ClassVar[Metric]
    """Failed reads, by `reasons`."""
    reasons: ClassVar[Sequence[str]]

    def __init__(
        self, host: Host, close: Callable[[], None], interval: float, timeout: float
    ) -> None:
        """Seconds between readings, and those that one may take; `close` ends the connection."""
        self._host = host
        self._close = close
        self._interval = interval
        self._failures: Counter[str] = Counter()
        self._refresher: Refresher[T] = Refresher(
            self.meter,
            self._read,
            interval,
            lifetime(interval, timeout),
            host.monotonic,
            longest_pause=_LONGEST_PAUSE,
        )

    def start(self) -> None:
        """Begin to read."""
        self._refresher.start()

    def stop(self) -> None:
        """End the thread and the connection."""
        self._refresher.stop()
        self._close()

    def meters(self) -> Sequence[Meter]:
        """The node's power, once the BMC has answered."""
        if self._refresher.latest() is None:
            return ()
        return (Meter(self.meter, "node", True, self._interval, self._meter),)

    def collect(self) -> list[MetricFamily]:
        """The last reading, while it is young enough, and the count of failures."""
        counts = [(labels(reason=each), float(self._failures[each])) for each in self.reasons]
        seen = self._refresher.latest()
        shown = () if seen is None else self._families(seen)
        return [MetricFamily(self.errors, counts), *shown]

    def _meter(self) -> MeterReading | None:
        seen = self._refresher.latest()
        return None if seen is None else self._reading(seen)

    @abstractmethod
    def _read(self) -> T:
        """What the BMC says now; counts a failure in `_failures`, and raises it."""

    @abstractmethod
    def _families(self, seen: Observed[T]) -> Iterable[MetricFamily]:
        """The metrics of what it said."""

    @abstractmethod
    def _reading(self, seen: Observed[T]) -> MeterReading:
        """The power of the node in what it said."""
