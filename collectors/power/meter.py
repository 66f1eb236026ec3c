"""The common interface of energy meters: Cray, BMC, hwmon, RAPL and GPUs.

A collector of METER_RANKING has `meters()`: those found so far, none if this node lacks the source.
The energy collector calls it at every tick, and chooses one meter for the node. Reading never waits
for a device: a slow source is read in a thread of its collector, and `Meter.read` returns the last
reading. Both BMC collectors share a base class.
"""

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from batchjob.runtime.background import AbsentError, PostponedError, Refresher, validity_seconds
from batchjob.secret_files import SecretFileError, read_secret
from collectors.collector import Collector
from collectors.host import Host
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS, Metric, MetricFamily, labelled_family

# Best first: a counter for the whole node that is integrated by hardware, then meters of the node's
# power input, then the processors' counters; not RAPL's `psys`, which depends on the board.
METER_RANKING = ("cray", "redfish", "ipmi", "hwmon", "rapl")

Scope = Literal["node", "cpu+memory", "cpu"]


class MeterReading(NamedTuple):
    """A reading of a meter: its energy counter if it has one, else the current power.

    Different `series` are unrelated: the counter restarted, or the energy in between is not known.
    """

    at: float  # Host.monotonic() when the device was read
    joules: float | None = None  # increases within its series
    watts: float | None = None
    series: int = 0


class Meter(NamedTuple):
    """A meter of the node's energy. `read` returns None while there is no trusted value."""

    name: str  # one of METER_RANKING; the label `meter`
    scope: Scope
    includes_gpus: bool  # the usual wiring of the source; a setting overrides it
    period: float  # seconds between readings; 0: read on request
    read: Callable[[], MeterReading | None]


def choose_meter(
    source: str, available: Collection[str], enabled: Collection[str], last: str, startup_over: bool
) -> str | None:
    """Name the meter to use, or None while it is better to wait.

    `source` is a name, or `auto` for the best one that answers; `enabled` are the collectors with
    meters, `last` the meter used before a restart, `startup_over`: all had time to answer. A BMC
    needs some time, and a lower-ranked meter is kept once it has been chosen.
    """
    if source != "auto":
        return source if source in available else None
    if last in available:
        return last
    best = next((name for name in METER_RANKING if name in enabled), "")
    if not startup_over and best not in available:
        return None
    return next((name for name in METER_RANKING if name in available), None)


class GpuEnergyShare(NamedTuple):
    """A job's share of one GPU.

    `share` is 1 for a whole GPU, the compute slices of its instances over those of the GPU with
    MIG, and an equal part each where jobs share; the shares of one GPU add up to at most 1.
    """

    job: JobName
    share: float
    # How busy the share was: 1 all of the time, above 1 if the job also used other shares.
    activity: float | None = None
    confirmed: bool = True  # by something that the job's user cannot write


class GpuEnergyReading(NamedTuple):
    """The energy counter of one physical GPU, and the jobs that used it at that moment."""

    uuid: str
    at: float  # Host.monotonic()
    joules: float  # increases within its series; integrated from power if there is no counter
    series: int  # changes when the counter restarts (driver reloaded, GPU reset)
    shares: tuple[GpuEnergyShare, ...]
    # Monotonic seconds and the integral of its power up to then; empty: not read often enough.
    power: tuple[tuple[float, float], ...] = ()


def new_series() -> int:
    """A series number that is not used by any other reading, even of an earlier process."""
    # Floats, and therefore JSON, represent 52 bits exactly. `secrets` would load 4 MB of OpenSSL.
    return int.from_bytes(os.urandom(7)) >> 4


def energy_between(
    earlier: MeterReading, later: MeterReading, max_gap_seconds: float
) -> float | None:
    """Joules between two readings: counted, or the trapezoid under two power readings.

    None if they belong to different series, are more than `max_gap_seconds` apart, or the counter
    went down.
    """
    seconds = later.at - earlier.at
    if later.series != earlier.series or not 0 < seconds <= max_gap_seconds:
        return None
    if earlier.joules is not None and later.joules is not None:
        joules = later.joules - earlier.joules
        return joules if joules >= 0 else None
    if earlier.watts is not None and later.watts is not None:
        return (earlier.watts + later.watts) / 2 * seconds
    return None


# More than any node draws; a BMC without a value reports 65535 (16 bits).
_MAX_WATTS = 50_000.0
_MAX_MEDIAN_RATIO = 10.0  # times the median of the last readings
_WINDOW_READINGS = 60  # readings in the median
_MIN_READINGS = 5  # readings needed for a meaningful median
# So many consistent readings in a row are accepted: a GPU node may have begun to work.
_CONSISTENT_READINGS = 3


class PlausiblePower:
    """Detects glitches in the readings of one gauge of power.

    A failing sensor or a disturbed bus returns all bits set, or bytes of another number. Unlike the
    glitch of a counter, such a value would remain in the energy totals. `series` changes with each
    glitch, since the time around it is unknown.
    """

    def __init__(self) -> None:
        self.series = 0
        self._accepted: deque[float] = deque(maxlen=_WINDOW_READINGS)
        self._rejected: list[float] = []

    def limit_watts(self) -> float:
        if len(self._accepted) < _MIN_READINGS:
            return _MAX_WATTS
        return min(_MAX_WATTS, _MAX_MEDIAN_RATIO * max(_median(self._accepted), 1.0))

    def accept(self, watts: float, rated_watts: float | None = None) -> bool:
        """Record a reading; False if it is rejected, as is any above twice `rated_watts`."""
        max_watts = _MAX_WATTS if rated_watts is None else min(_MAX_WATTS, 2 * rated_watts)
        if not 0 <= watts <= max_watts:
            self.series += 1
            return False
        if watts > self.limit_watts():
            self._rejected = [x for x in self._rejected if watts / 2 <= x <= watts * 2]
            self._rejected.append(watts)
            if len(self._rejected) < _CONSISTENT_READINGS:
                self.series += 1
                return False
            self._accepted.clear()
        self._rejected.clear()
        self._accepted.append(watts)
        return True


def _median(values: Collection[float]) -> float:
    """The median; importing `statistics` would take a megabyte of memory."""
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[-1 - middle]) / 2


_LONGEST_BMC_PAUSE_SECONDS = 600.0


class BmcError(Exception):
    """No value could be read, for one of the `error_reasons` of the collector."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_password(path: str) -> str:
    try:
        return read_secret(path)
    except SecretFileError as error:
        raise BmcError("authentication", str(error)) from error


class BmcReading(NamedTuple):
    """The node's power according to its BMC, and the families that show it."""

    watts: float
    series: int  # as in `MeterReading`
    families: Sequence[MetricFamily]


class BmcCollector(Collector):
    """A thread reads the node's power from its BMC, and failures are counted.

    BMCs are slow: after consecutive errors, one is queried less and less often.
    """

    meter_name: ClassVar[str]
    """The name of its meter."""
    age_metric: ClassVar[Metric]
    """Age of the reading."""
    error_metric: ClassVar[Metric]
    """Counter of failed reads, by reason."""
    error_reasons: ClassVar[Sequence[str]]
    """The values of its label `reason`."""
    pause_seconds: ClassVar[Mapping[str, float]]
    """How long a BMC is left alone after some of them."""

    def __init__(
        self, host: Host, close: Callable[[], None], interval: float, timeout: float
    ) -> None:
        """`interval` and `timeout` are in seconds; `close` ends the connection."""
        self._host = host
        self._close = close
        self._interval = interval
        self._failure_counts = dict.fromkeys(self.error_reasons, 0)
        self.refresher: Refresher[BmcReading] = Refresher(
            self.meter_name,
            self._read,
            interval,
            validity_seconds(interval, timeout),
            host.monotonic,
            longest_pause=_LONGEST_BMC_PAUSE_SECONDS,
        )
        self.threads = (self.refresher,)

    def stop(self) -> None:
        super().stop()
        self._close()

    def meters(self) -> Sequence[Meter]:
        """The node's power, once the BMC has answered."""
        if self.refresher.latest() is None:
            return ()
        return (Meter(self.meter_name, "node", True, self._interval, self._read_meter),)

    def collect(self) -> list[MetricFamily]:
        """The last reading, unless it is too old, and the count of failures."""
        errors = labelled_family(self.error_metric, self._failure_counts)
        observed = self.refresher.latest()
        if observed is None:
            return [errors]
        age = self._host.monotonic() - observed.at
        return [errors, *observed.value.families, MetricFamily(self.age_metric, [(NO_LABELS, age)])]

    def _read_meter(self) -> MeterReading | None:
        observed = self.refresher.latest()
        if observed is None:
            return None
        return MeterReading(observed.at, watts=observed.value.watts, series=observed.value.series)

    def _read(self) -> BmcReading:
        try:
            return self.read_bmc()
        except BmcError as error:
            self._failure_counts[error.reason] += 1
            if error.reason not in self.pause_seconds:
                raise
            exception = AbsentError if error.reason == "no_device" else PostponedError
            raise exception(str(error), self.pause_seconds[error.reason]) from error

    @abstractmethod
    def read_bmc(self) -> BmcReading:
        """Read the BMC now; raises BmcError."""
