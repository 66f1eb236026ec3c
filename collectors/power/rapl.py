"""Energy counters of the processors (RAPL).

The kernel exposes a 32-bit register scaled to microjoules: it wraps after 65 kJ on AMD and 262 kJ
on Intel, which is minutes under load. A thread reads often enough not to miss a wrap, and the
totals continue across wraps.
"""

import errno
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from batchjob.runtime.background import Loop
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration
from collectors.collector import Collector, CollectorModule
from collectors.host import Host
from collectors.metric import Labels, Metric, MetricFamily, labels
from collectors.power import powercap
from collectors.power.meter import Meter, MeterReading, Scope, new_series
from collectors.power.powercap import Limit, Zone, ZoneDomain

log = logging.getLogger(__name__)

_RESCAN_SECONDS = 300.0  # processors may be hot-plugged, and drivers loaded
_SHORTEST_INTERVAL = 0.5
# Maximum power of a board with all its components, relative to one socket.
_PSYS_TIMES = 10.0
# Tolerance for the time between reading the clock and the register, and for a unit of 1 J.
_SLACK_SECONDS, _SLACK_JOULES = 0.1, 2.0

ENERGY = Metric(
    "batchjob_rapl_energy_joules_total",
    "counter",
    "Energy counted by RAPL since the exporter's first read, corrected for counter "
    "wraps. Zones overlap (psys contains packages, a package contains core and "
    "uncore) and must not be added.",
    ("zone", "package"),
)
LIMIT = Metric(
    "batchjob_rapl_power_limit_watts",
    "gauge",
    "Power limit in force; the zone mmio is a second limit of the package.",
    ("zone", "package", "constraint"),
)
ERRORS = Metric(
    "batchjob_rapl_read_errors_total",
    "counter",
    "Failed reads of a zone's energy; with the reason permission, the exporter may "
    "not read energy_uj (root only by default).",
    ("reason",),
)
GAPS = Metric(
    "batchjob_rapl_gaps_total",
    "counter",
    "Intervals not included in the energy: too long to tell how often the counter "
    "wrapped (wraps), or with more energy than the zone can use (implausible).",
    ("zone", "package", "reason"),
)
METRICS = (ENERGY, LIMIT, ERRORS, GAPS)


@dataclass(frozen=True)
class RaplOptions:
    """How RAPL is read."""

    interval: float = option(
        10.0,
        "Maximum interval between readings; shorter where a counter wraps quickly.",
        parse=duration,
    )
    max_power_watts: float = option(
        1000.0,
        "Maximum plausible power of a socket; twice the zone's own maximum if that is higher.",
    )


class Raw(NamedTuple):
    """A counter's raw value and its time."""

    at: float  # Host.monotonic()
    joules: float


class CounterDelta(NamedTuple):
    """The difference between two readings of a counter: joules, or why they are not known."""

    joules: float
    gap: str = ""


def step(earlier: Raw, later: Raw, range_joules: float | None, max_watts: float) -> CounterDelta:
    """Energy between two readings of a counter that wraps at `range_joules`.

    If a whole range at `max_watts` fits into the time between them, the number of wraps is unknown.
    """
    seconds = later.at - earlier.at
    if range_joules is not None and seconds * max_watts >= range_joules:
        return CounterDelta(0.0, "wraps")
    joules = later.joules - earlier.joules
    if joules < 0:
        if range_joules is None:
            return CounterDelta(0.0, "wraps")
        joules += range_joules
    if joules < 0 or joules > (seconds + _SLACK_SECONDS) * max_watts + _SLACK_JOULES:
        return CounterDelta(0.0, "implausible")
    return CounterDelta(joules)


class CounterTrack:
    """One zone's total since its first read."""

    def __init__(self, zone: Zone, max_watts: float) -> None:
        self.zone = zone
        self.counts = False  # the counter was not 0 at least once; without RAPL it stays 0
        self.readable = False
        self.total = 0.0
        self.max_watts = max_watts
        self._last: Raw | None = None

    def add(self, raw: Raw) -> str:
        """Count up to `raw`; returns why the time since the last reading was left out, if so."""
        self.readable = True
        self.counts = self.counts or raw.joules > 0
        last, self._last = self._last, raw
        if last is None:
            return ""
        between = step(last, raw, self.zone.range_joules, self.max_watts)
        self.total += between.joules
        return between.gap


class Rapl:
    """All zones. `look()` may be called from any thread, the more often the better."""

    def __init__(self, host: Host, options: RaplOptions) -> None:
        self._host = host
        self._options = options
        self._root = powercap.root_of(host.sysfs)
        self._tracks: dict[str, CounterTrack] = {}  # by path
        self._limits: tuple[Limit, ...] = ()
        self._errors: Counter[str] = Counter()
        self._gaps: Counter[tuple[ZoneDomain, str]] = Counter()
        self._series = new_series()
        self._scanned_at = float("-inf")
        self._once = LogOnce(log)
        self._lock = threading.Lock()
        self._loop = Loop("rapl", self._step)

    def start(self) -> None:
        """Start following the counters."""
        self._loop.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._loop.stop()

    def collect(self) -> list[MetricFamily]:
        """The totals, read now: those of the thread's last reading would make rates oscillate.

        It costs a register read per zone, which takes microseconds.
        """
        totals = self.look()
        with self._lock:
            gaps, errors = dict(self._gaps), dict(self._errors)
        families = (
            MetricFamily(ENERGY, [(_labels(place), joules) for place, joules in totals.items()]),
            MetricFamily(
                LIMIT, [(_labels(x.place, constraint=x.constraint), x.watts) for x in self._limits]
            ),
            MetricFamily(ERRORS, [(labels(reason=why), count) for why, count in errors.items()]),
            MetricFamily(
                GAPS, [(_labels(at, reason=why), count) for (at, why), count in gaps.items()]
            ),
        )
        return [family for family in families if family.samples]

    def meters(self) -> Sequence[Meter]:
        """Processors with their memory as one meter; the board (psys) as another."""
        counting = self._counting()
        scope: Scope = "cpu+memory" if "dram" in counting else "cpu"
        offered = (
            ("package", Meter("rapl", scope, False, 0.0, lambda: self._sum("package", "dram"))),
            ("psys", Meter("psys", "node", True, 0.0, lambda: self._sum("psys"))),
        )
        return [meter for zone, meter in offered if zone in counting]

    def look(self) -> dict[ZoneDomain, float]:
        """Read every counter now; joules of each place of which all parts are known."""
        with self._lock:
            if self._host.monotonic() - self._scanned_at >= _RESCAN_SECONDS:
                self._scan()
            for track in self._tracks.values():
                self._read(track)
            return {
                place: sum(track.total for track in tracks)
                for place, tracks in _by_place(self._tracks).items()
                if all(track.readable and track.counts for track in tracks)
            }

    def interval(self) -> float:
        """Seconds between readings, in which no zone can count more than half of its range."""
        with self._lock:
            turns = [
                track.zone.range_joules / track.max_watts / 2
                for track in self._tracks.values()
                if track.zone.range_joules
            ]
        return max(_SHORTEST_INTERVAL, min([self._options.interval, *turns]))

    def _step(self) -> float:
        try:
            self.look()
            self._limits = tuple(powercap.limits(self._root))
        except Exception as error:  # an unexpected tree must not end the thread
            self._once.warning("step", "rapl: %s: %s", type(error).__name__, error)
        return self.interval()

    def _scan(self) -> None:
        """Look for zones; a place that gained or lost one restarts, since its sum would jump."""
        self._scanned_at = self._host.monotonic()
        found = {zone.path: zone for zone in powercap.to_count(self._root, self._cpuinfo)}
        if not found and powercap.masked(self._root):
            self._errors["masked"] += 1
            self._once.warning("masked", "%s: zones are listed but masked", self._root)
        kept = {path: self._tracks[path] for path in found.keys() & self._tracks.keys()}
        before, after = _by_place(self._tracks), Counter(zone.place for zone in found.values())
        moved = {place for place in before if len(before[place]) != after[place]}
        if moved:
            self._series = new_series()
        self._tracks = {
            path: kept[path]
            if path in kept and zone.place not in moved
            else CounterTrack(zone, self._most_watts(zone))
            for path, zone in found.items()
        }

    def _read(self, track: CounterTrack) -> None:
        """Must be called with the lock held."""
        zone = track.zone
        try:
            gap = track.add(Raw(self._host.monotonic(), powercap.energy_joules(zone)))
        except (OSError, ValueError) as error:
            track.readable = False
            reason = _reason(error)
            self._errors[reason] += 1
            self._once.warning(reason, "%s/energy_uj cannot be read: %s", zone.path, error)
            return
        if gap:
            self._gaps[zone.place, gap] += 1
            self._series = new_series()
            self._once.warning(f"{gap} {zone.path}", "%s: interval skipped: %s", zone.path, gap)

    def _sum(self, *zones: str) -> MeterReading | None:
        """The sum of the zones' places; None if one is missing, since it would be too low."""
        totals = self.look()
        at = self._host.monotonic()
        counting = self._counting()
        with self._lock:
            wanted = {
                track.zone.place
                for track in self._tracks.values()
                if track.zone.place.zone in zones and track.zone.place.zone in counting
            }
            if not wanted or not wanted <= totals.keys():
                return None
            return MeterReading(at, joules=sum(totals[x] for x in wanted), series=self._series)

    def _counting(self) -> set[str]:
        with self._lock:
            return {track.zone.place.zone for track in self._tracks.values() if track.counts}

    @property
    def _cpuinfo(self) -> str:
        return f"{self._host.procfs}/cpuinfo"

    def _most_watts(self, zone: Zone) -> float:
        watts = max(self._options.max_power_watts, 2 * (zone.max_watts or 0.0))
        return watts * _PSYS_TIMES if zone.place.zone == "psys" else watts


def build(host: Host, options: RaplOptions, _built: Mapping[str, Collector]) -> Rapl:
    """Build the collector."""
    return Rapl(host, options)


def _labels(place: ZoneDomain, **more: str) -> Labels:
    return labels(zone=place.zone, package=place.package, **more)


def _by_place(tracks: Mapping[str, CounterTrack]) -> dict[ZoneDomain, list[CounterTrack]]:
    places: dict[ZoneDomain, list[CounterTrack]] = defaultdict(list)
    for track in tracks.values():
        places[track.zone.place].append(track)
    return places


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return "invalid"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission"
    return "gone" if error.errno in (errno.ENOENT, errno.ENODEV) else "io"


COLLECTOR = CollectorModule(RaplOptions, METRICS, build)
