"""Power and energy of HPE Cray nodes, from the counters of their node controller in sysfs.

`/sys/cray/pm_counters` is written about ten times a second and readable by all. A file contains
`<number> W <microseconds> us`; `freshness` increases with every update, `startup` when the
controller restarts (HPE: Cray System Management documentation, pm_counters).
"""

import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchjob.runtime.log import LogOnce
from collectors.collector import Collector, CollectorModule, NoOptions
from collectors.host import Host
from collectors.metric import NO_LABELS, Metric, MetricFamily, labelled_family
from collectors.power.meter import Meter, MeterReading, PlausiblePower

log = logging.getLogger(__name__)

_FILE = re.compile(r"(?:(cpu|memory|accel\d+)_)?(power|energy)")
_VALUE = re.compile(r"(\d+) (W|J)\b.*")
_ATTEMPTS = 3
# Counters that have not changed for this long are stale: they are updated every 0.1 s.
_STALE_SECONDS = 1.0

# fmt: off
ENERGY = Metric("batchjob_cray_energy_joules_total", "counter",
    "Energy counted by the node controller; domain node contains cpu, memory and accel.",
    ("domain",))
POWER = Metric("batchjob_cray_power_watts", "gauge",
    "Power measured by the node controller; domain node contains cpu, memory and accel.",
    ("domain",))
STALE = Metric("batchjob_cray_stale_reads_total", "counter",
    "Discarded reads: the counters did not advance, or changed during the read.")
# fmt: on
METRICS = (ENERGY, POWER, STALE)


class CrayCounters(NamedTuple):
    """All files of one update. Watts and joules by domain; any of them may be missing."""

    freshness: int
    startup: int
    power: Mapping[str, float]
    energy: Mapping[str, float]


def read(directory: str) -> CrayCounters | None:
    """Read the directory; None if the counters changed during every attempt.

    Raises OSError if there are no such counters, and ValueError for an unknown format.
    """
    for _ in range(_ATTEMPTS):
        before = read_integer(directory, "freshness")
        values: dict[str, dict[str, float]] = {"power": {}, "energy": {}}
        for entry in os.listdir(directory):
            if match := _FILE.fullmatch(entry):
                values[match[2]][match[1] or "node"] = read_value(directory, entry)
        startup = read_integer(directory, "startup")
        if read_integer(directory, "freshness") == before:
            return CrayCounters(before, startup, **values)
    return None


class Cray(Collector):
    def __init__(self, host: Host) -> None:
        self._host = host
        self._directory = f"{host.sysfs}/cray/pm_counters"
        self._fresh_since: tuple[int, float] | None = None  # freshness, and when first seen
        self._stale_reads = 0
        self._once = LogOnce(log)
        self._plausible: dict[str, PlausiblePower] = defaultdict(PlausiblePower)  # by domain
        self._lock = threading.Lock()

    def current_counters(self) -> CrayCounters | None:
        """The current counters; None if there are none, or they are not updated."""
        with self._lock:
            try:
                counters = read(self._directory)
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as error:
                self._once.warning("read", "%s: %s", self._directory, error)
                return None
            self._once.forget("read")
            if counters is None or self._is_stale(counters.freshness):
                self._stale_reads += 1
                self._once.warning("stale", "%s is not updated", self._directory)
                return None
            self._once.forget("stale")
            return counters

    def collect(self) -> list[MetricFamily]:
        counters = self.current_counters()
        if self._fresh_since is None:
            return []
        families = [MetricFamily(STALE, [(NO_LABELS, self._stale_reads)])]
        if counters is not None:
            power = {
                domain: watts
                for domain, watts in counters.power.items()
                if self._plausible[domain].accept(watts)
            }
            families += [labelled_family(ENERGY, counters.energy), labelled_family(POWER, power)]
        return [family for family in families if family.samples]

    def meters(self) -> Sequence[Meter]:
        """The node, accelerators included."""
        if not os.path.exists(f"{self._directory}/energy"):
            return ()
        return (Meter("cray", "node", True, 0.0, self._read_meter),)

    def _read_meter(self) -> MeterReading | None:
        counters = self.current_counters()
        if counters is None or "node" not in counters.energy:
            return None
        return MeterReading(
            self._host.monotonic(),
            counters.energy["node"],
            counters.power.get("node"),
            counters.startup,
        )

    def _is_stale(self, freshness: int) -> bool:
        now = self._host.monotonic()
        if self._fresh_since is None or self._fresh_since[0] != freshness:
            self._fresh_since = freshness, now
        return now - self._fresh_since[1] > _STALE_SECONDS


def read_integer(directory: str, entry: str) -> int:
    return int(_read_text(directory, entry))


def read_value(directory: str, entry: str) -> float:
    text = _read_text(directory, entry)
    match = _VALUE.fullmatch(text)
    if match is None:
        raise ValueError(f"{entry}: expected a number of W or J, got {text[:40]!r}")
    return float(match[1])


def _read_text(directory: str, entry: str) -> str:
    with open(os.path.join(directory, entry), encoding="ascii", errors="replace") as file:
        return file.read().strip()


COLLECTOR = CollectorModule(NoOptions, METRICS, lambda host, *_: Cray(host))
