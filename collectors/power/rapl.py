"""Energy counters of the processors (RAPL).

The kernel exposes a 32-bit register scaled to microjoules: it wraps after 65 kJ on AMD and 262 kJ
on Intel, which is minutes under load. A thread reads often enough not to miss a wrap, and the
totals continue across wraps, and across a restart of the exporter within a boot.
"""

import errno
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from batchjob.runtime.background import PeriodicTask
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration
from collectors.collector import Collector, CollectorModule
from collectors.host import Host
from collectors.metric import Labels, Metric, MetricFamily, labelled_family, labels
from collectors.power import powercap
from collectors.power.meter import Meter, MeterReading, Scope, new_series
from collectors.power.powercap import Zone, ZoneDomain
from collectors.state import StateFile

log = logging.getLogger(__name__)

_FILE = "rapl.json"
_RESCAN_SECONDS = 300.0  # processors may be hot-plugged, and drivers loaded
_MIN_INTERVAL_SECONDS = 0.5
# Maximum plausible power of a socket; twice the zone's own maximum if that is higher.
_MAX_SOCKET_WATTS = 1000.0
# Maximum power of a board with all its components, relative to one socket.
_PSYS_FACTOR = 10.0
# Tolerance for the time between reading the clock and the register, and for a unit of 1 J.
_SLACK_SECONDS, _SLACK_JOULES = 0.1, 2.0

# fmt: off
ENERGY = Metric("batchjob_rapl_energy_joules_total", "counter",
    "Energy counted by RAPL, corrected for counter wraps; the total continues when the exporter "
    "restarts within a boot. Zones overlap (psys contains packages, a package contains core and "
    "uncore) and must not be added.", ("zone", "package"))
ERRORS = Metric("batchjob_rapl_read_errors_total", "counter",
    "Failed reads of a zone's energy; with the reason permission, the exporter may not read "
    "energy_uj (root only by default).", ("reason",))
_REASONS = ("masked", "permission", "gone", "io", "invalid")
GAPS = Metric("batchjob_rapl_gaps_total", "counter",
    "Intervals not included in the energy: too long to tell how often the counter wrapped (wraps), "
    "or with more energy than the zone can use (implausible).", ("zone", "package", "reason"))
# fmt: on
METRICS = (ENERGY, ERRORS, GAPS)


@dataclass(frozen=True)
class RaplOptions:
    # fmt: off
    interval: float = option(10.0,
        "Maximum interval between readings; shorter where a counter wraps quickly.", parse=duration)
    # fmt: on


def counter_delta(
    seconds: float, earlier: float, later: float, range_joules: float | None, max_watts: float
) -> tuple[float, str]:
    """Joules between two readings of a counter that wraps at `range_joules`, or why not known.

    If a whole range at `max_watts` fits into the time between them, the number of wraps is unknown.
    """
    if range_joules is not None and seconds * max_watts >= range_joules:
        return 0.0, "wraps"
    joules = later - earlier
    if joules < 0:
        if range_joules is None:
            return 0.0, "wraps"
        joules += range_joules
    if joules < 0 or joules > (seconds + _SLACK_SECONDS) * max_watts + _SLACK_JOULES:
        return 0.0, "implausible"
    return joules, ""


class ZoneCounter:
    """The total of one zone, from its first reading or the total of the exporter before."""

    def __init__(self, zone: Zone) -> None:
        self.zone = zone
        self.is_counting = False  # the counter was not 0 at least once; without RAPL it stays 0
        self.is_readable = False
        self.total_joules = 0.0
        self.max_watts = max(_MAX_SOCKET_WATTS, 2 * (zone.max_watts or 0.0))
        if zone.domain.zone == "psys":
            self.max_watts *= _PSYS_FACTOR
        self.last: tuple[float, float] | None = None  # Host.monotonic() and joules

    def add(self, at: float, joules: float) -> str:
        """Add a reading; returns why the time since the last one is left out, or ""."""
        self.is_readable = True
        self.is_counting = self.is_counting or joules > 0
        last, self.last = self.last, (at, joules)
        if last is None:
            return ""
        added, gap = counter_delta(
            at - last[0], last[1], joules, self.zone.range_joules, self.max_watts
        )
        self.total_joules += added
        return gap


class Rapl(Collector):
    """All zones. `read_totals()` may be called from any thread, at any rate."""

    def __init__(self, host: Host, options: RaplOptions) -> None:
        self._host = host
        self._options = options
        self._root = f"{host.sysfs}/class/powercap"
        self._counters: dict[str, ZoneCounter] = {}  # by path
        self._errors: Counter[str] = Counter()
        self._gaps: Counter[tuple[ZoneDomain, str]] = Counter()
        self._series = new_series()
        self._scanned_at = float("-inf")
        self._state = StateFile(host, _FILE, "rapl: totals")
        self._is_resumed = False
        self._once = LogOnce(log)
        self._lock = threading.Lock()
        self.threads = (PeriodicTask("rapl", self._step),)

    def collect(self) -> list[MetricFamily]:
        """The totals, read now: those of the thread's last reading would make rates oscillate.

        It costs a register read per zone, which takes microseconds.
        """
        totals = self.read_totals()
        with self._lock:
            gaps, errors = dict(self._gaps), dict(self._errors)
        families = (
            MetricFamily(ENERGY, [(_labels(domain), joules) for domain, joules in totals.items()]),
            labelled_family(ERRORS, errors),
            MetricFamily(
                GAPS, [(_labels(at, reason=why), count) for (at, why), count in gaps.items()]
            ),
        )
        return [family for family in families if family.samples]

    def meters(self) -> Sequence[Meter]:
        """Processors with their memory as one meter."""
        counting_zones = self._counting_zones()
        if "package" not in counting_zones:
            return []
        scope: Scope = "cpu+memory" if "dram" in counting_zones else "cpu"
        return [Meter("rapl", scope, False, 0.0, self._sum_processors)]

    def read_totals(self) -> dict[ZoneDomain, float]:
        """Read every counter now; joules of each domain of which all zones are known."""
        totals: dict[ZoneDomain, float] = defaultdict(float)
        unknown = set()
        with self._lock:
            if self._host.monotonic() - self._scanned_at >= _RESCAN_SECONDS:
                self._scan()
            for counter in self._counters.values():
                self._read_zone(counter)
                totals[counter.zone.domain] += counter.total_joules
                if not (counter.is_readable and counter.is_counting):
                    unknown.add(counter.zone.domain)
        return {domain: joules for domain, joules in totals.items() if domain not in unknown}

    def interval(self) -> float:
        """Seconds between readings; no zone can count more than half of its range in them."""
        with self._lock:
            half_range_seconds = [
                counter.zone.range_joules / counter.max_watts / 2
                for counter in self._counters.values()
                if counter.zone.range_joules
            ]
        return max(_MIN_INTERVAL_SECONDS, min([self._options.interval, *half_range_seconds]))

    def _step(self) -> float:
        self.read_totals()
        self._save()
        return self.interval()

    def _scan(self) -> None:
        """Find the zones; a domain that gained or lost one restarts, since its sum would jump."""
        self._scanned_at = self._host.monotonic()
        cpuinfo = f"{self._host.procfs}/cpuinfo"
        zones = {zone.path: zone for zone in powercap.zones_to_count(self._root, cpuinfo)}
        is_masked = not zones and powercap.is_masked(self._root)
        if zones or is_masked:
            self._errors.update(dict.fromkeys(_REASONS, 0))  # `increase()` misses a first value
        if is_masked:
            self._errors["masked"] += 1
            self._once.warning("masked", "%s: zones are listed but masked", self._root)
        old_counts = Counter(counter.zone.domain for counter in self._counters.values())
        new_counts = Counter(zone.domain for zone in zones.values())
        changed = {domain for domain, count in old_counts.items() if new_counts[domain] != count}
        if changed:
            self._series = new_series()
        self._counters = {
            path: self._counters[path]
            if path in self._counters and zone.domain not in changed
            else ZoneCounter(zone)
            for path, zone in zones.items()
        }
        if not self._is_resumed:
            self._is_resumed = True
            self._resume()

    def _resume(self) -> None:
        """Continue the totals of the exporter before: the counters have the energy since then."""
        document = self._state.load()
        if not self._state.is_of_boot(document):
            return
        try:
            if document["zones"].keys() != self._counters.keys():
                return
            readings = {
                path: (float(at), float(joules), float(total))
                for path, (at, joules, total) in document["zones"].items()
            }
            series = int(document["series"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._state.refuse(error)
            return
        for path, (at, joules, total) in readings.items():
            counter = self._counters[path]
            counter.last, counter.total_joules = (at, joules), total
            counter.is_counting = joules > 0
        self._series = series

    def _save(self) -> None:
        with self._lock:
            zones = {
                path: (*counter.last, counter.total_joules)
                for path, counter in self._counters.items()
                if counter.last is not None
            }
            document = {"series": self._series, "zones": zones}
        self._state.save(document)

    def _read_zone(self, counter: ZoneCounter) -> None:
        """Read one zone. Must be called with the lock held."""
        zone = counter.zone
        try:
            gap = counter.add(self._host.monotonic(), powercap.energy_joules(zone))
        except (OSError, ValueError) as error:
            counter.is_readable = False
            reason = _error_reason(error)
            self._errors[reason] += 1
            self._once.warning(reason, "%s/energy_uj cannot be read: %s", zone.path, error)
            return
        if gap:
            self._gaps[zone.domain, gap] += 1
            self._series = new_series()
            self._once.warning(f"{gap} {zone.path}", "%s: interval skipped: %s", zone.path, gap)

    def _sum_processors(self) -> MeterReading | None:
        """Of packages and memory; None if one is missing, since the sum would be too low."""
        totals = self.read_totals()
        at = self._host.monotonic()
        counting_zones = self._counting_zones()
        with self._lock:
            domains_to_add = {
                counter.zone.domain
                for counter in self._counters.values()
                if counter.zone.domain.zone in counting_zones & {"package", "dram"}
            }
            if not domains_to_add or not domains_to_add <= totals.keys():
                return None
            return MeterReading(
                at, joules=sum(totals[x] for x in domains_to_add), series=self._series
            )

    def _counting_zones(self) -> set[str]:
        with self._lock:
            return {
                counter.zone.domain.zone
                for counter in self._counters.values()
                if counter.is_counting
            }


def _labels(domain: ZoneDomain, **more: str) -> Labels:
    return labels(zone=domain.zone, package=domain.package, **more)


def _error_reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return "invalid"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission"
    return "gone" if error.errno in (errno.ENOENT, errno.ENODEV) else "io"


COLLECTOR = CollectorModule(RaplOptions, METRICS, lambda host, options, _: Rapl(host, options))
