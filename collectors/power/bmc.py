"""Base class of the BMC collectors: a thread reads the node's power and counts failures.

BMCs are slow: after consecutive errors, one is queried less and less often.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

from batchjob.runtime.background import Observed, Refresher, validity_seconds
from collectors.host import Host
from collectors.metric import Metric, MetricFamily, labels
from collectors.power.meter import Meter, MeterReading

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS = 600.0


class BmcCollector(ABC, Generic[T]):
    """The node's power according to its BMC."""

    meter_name: ClassVar[str]
    """The name of its meter."""
    error_metric: ClassVar[Metric]
    """Counter of failed reads, by reason."""
    error_reasons: ClassVar[Sequence[str]]
    """The values of its label `reason`."""

    def __init__(
        self, host: Host, close: Callable[[], None], interval: float, timeout: float
    ) -> None:
        """`interval` and `timeout` are in seconds; `close` ends the connection."""
        self._host = host
        self._close = close
        self._interval = interval
        self._failure_counts: Counter[str] = Counter()
        self.refresher: Refresher[T] = Refresher(
            self.meter_name,
            self._read,
            interval,
            validity_seconds(interval, timeout),
            host.monotonic,
            longest_pause=_LONGEST_PAUSE_SECONDS,
        )

    def start(self) -> None:
        self.refresher.start()

    def stop(self) -> None:
        self.refresher.stop()
        self._close()

    def meters(self) -> Sequence[Meter]:
        """The node's power, once the BMC has answered."""
        if self.refresher.latest() is None:
            return ()
        return (Meter(self.meter_name, "node", True, self._interval, self._read_meter),)

    def collect(self) -> list[MetricFamily]:
        """The last reading, unless it is too old, and the count of failures."""
        samples = [
            (labels(reason=reason), float(self._failure_counts[reason]))
            for reason in self.error_reasons
        ]
        observed = self.refresher.latest()
        families = () if observed is None else self._families(observed)
        return [MetricFamily(self.error_metric, samples), *families]

    def _read_meter(self) -> MeterReading | None:
        observed = self.refresher.latest()
        return None if observed is None else self._meter_reading(observed)

    @abstractmethod
    def _read(self) -> T:
        """Read the BMC now; a failure is counted in `_failure_counts` and raised."""

    @abstractmethod
    def _families(self, observed: Observed[T]) -> Iterable[MetricFamily]:
        """The metrics of a reading."""

    @abstractmethod
    def _meter_reading(self, observed: Observed[T]) -> MeterReading:
        """The node's power in a reading."""
