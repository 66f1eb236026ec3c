"""Power and energy sensors of the kernel's hwmon class.

Most sensors measure a part of the node: a rail, a GPU, a network card. Those that measure the whole
node are known for a few chips and configured by the site for others (Linux: Documentation/hwmon/
sysfs-interface.rst, acpi_power_meter.rst; NVIDIA: Grace Performance Tuning Guide, power telemetry).
"""

import fnmatch
import logging
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from batchjob.runtime.background import Refresher, validity_seconds
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration
from collectors.collector import Collector, CollectorModule
from collectors.host import Host, list_directory, read_text
from collectors.metric import NO_LABELS, Metric, MetricFamily, labels
from collectors.power.meter import Meter, MeterReading, PlausiblePower, Scope

log = logging.getLogger(__name__)

_INPUT = re.compile(r"(power|energy)(\d+)_(input|average)")
_RESCAN_SECONDS = 300.0

# fmt: off
POWER = Metric("batchjob_hwmon_power_watts", "gauge",
    "Power measured by a sensor, averaged if the chip averages. On NVIDIA Grace sensors overlap "
    "(Module contains Grace, Grace contains CPU and SysIO) and must not be added.", ("chip",
    "sensor"))
ENERGY = Metric("batchjob_hwmon_energy_joules_total", "counter",
    "Energy measured by a sensor since its driver was loaded.", ("chip", "sensor"))
# fmt: on
ERRORS = Metric("batchjob_hwmon_read_errors_total", "counter", "Failed reads of sensors.")
METRICS = (POWER, ENERGY, ERRORS)


@dataclass(frozen=True)
class HwmonOptions:
    interval: float = option(10.0, "Interval between readings.", parse=duration)
    node_sensor: tuple[str, ...] = option(
        (),
        "Pattern chip/sensor of sensors whose sum is the node's power, for chips that "
        "batchjob does not know.",
        repeat=True,
    )


class HwmonSensor(NamedTuple):
    """A file with microwatts or microjoules."""

    path: str
    kind: str  # power or energy
    driver: str  # name of the chip, as set by its driver
    chip: str  # name and bus address; hwmon numbers change between boots
    sensor: str


# Driver and name of sensors whose sum is the node or its processors, and whether GPUs are in it.
# The first row with sensors is used: each level of Grace includes the next.
_KNOWN_SENSORS: tuple[tuple[str, re.Pattern[str], Scope, bool], ...] = (
    ("power_meter", re.compile(r"Module Power Socket \d+"), "cpu+memory", True),
    ("power_meter", re.compile(r"Grace Power Socket \d+"), "cpu+memory", False),
    ("power_meter", re.compile(r"(?!.* Power Socket \d).*"), "node", True),
    ("amd_energy", re.compile(r"Esocket\d+"), "cpu", False),
)


def scan(root: str) -> tuple[HwmonSensor, ...]:
    """The power and energy sensors below /sys/class/hwmon, without batteries."""
    sensors: list[HwmonSensor] = []
    for entry in list_directory(root):
        hwmon = f"{root}/{entry}"
        # Old drivers such as acpi_power_meter have their files in the device's directory.
        directory = next((d for d in (hwmon, f"{hwmon}/device") if _find_channels(d)), None)
        driver = read_text(f"{hwmon}/name") or read_text(f"{hwmon}/device/name")
        if directory is None or not driver:
            continue
        address = os.path.basename(os.path.realpath(f"{hwmon}/device"))
        chip = f"{driver}-{address}" if os.path.exists(f"{hwmon}/device") else driver
        if any(chip == each.chip for each in sensors):
            chip = f"{chip}-{entry}"
        sensors += _chip_sensors(directory, driver, chip)
    return tuple(sensors)


def _chip_sensors(directory: str, driver: str, chip: str) -> list[HwmonSensor]:
    sensors: list[HwmonSensor] = []
    used_names: set[tuple[str, str]] = set()
    for kind, number, file in _find_channels(directory):
        channel = f"{kind}{number}"
        if read_text(f"{directory}/{channel}_is_battery") == "1":
            continue
        label = read_text(f"{directory}/{channel}_label") or read_text(
            f"{directory}/{channel}_oem_info"
        )
        name = channel if not label or (kind, label) in used_names else label
        used_names.add((kind, name))
        sensors.append(HwmonSensor(f"{directory}/{file}", kind, driver, chip, name))
    return sensors


def _find_channels(directory: str) -> list[tuple[str, int, str]]:
    """Kind, number and file of each channel; the average if there is one."""
    channels: dict[tuple[str, int], str] = {}
    for entry in list_directory(directory):
        if match := _INPUT.fullmatch(entry):
            key = match[1], int(match[2])
            if key not in channels or match[3] == "average":
                channels[key] = entry
    return [(kind, number, file) for (kind, number), file in sorted(channels.items())]


def node_sensors(
    sensors: Sequence[HwmonSensor], patterns: Sequence[str] = ()
) -> tuple[tuple[HwmonSensor, ...], Scope, bool] | None:
    """The sensors to add up, what their sum measures, and whether it includes GPUs.

    By the site's patterns, else by the known chips.
    """
    if patterns:
        names = {sensor: f"{sensor.chip}/{sensor.sensor}" for sensor in sensors}
        matching = [x for x in sensors if any(fnmatch.fnmatchcase(names[x], p) for p in patterns)]
        return (_prefer_energy(matching), "node", True) if matching else None
    for driver, name, scope, includes_gpus in _KNOWN_SENSORS:
        matching = [x for x in sensors if x.driver == driver and name.fullmatch(x.sensor)]
        # Two unnamed power meters are ambiguous: two inputs, or a part and the whole.
        if matching and not (scope == "node" and len(matching) > 1):
            return _prefer_energy(matching), scope, includes_gpus
    return None


class Hwmon(Collector):
    """All sensors, read in a thread: the firmware behind one may be slow."""

    def __init__(self, host: Host, options: HwmonOptions) -> None:
        self._host = host
        self._options = options
        self._root = f"{host.sysfs}/class/hwmon"
        self._sensors: tuple[HwmonSensor, ...] = ()
        self._scanned_at = float("-inf")
        self._errors = 0
        self._plausible: dict[HwmonSensor, PlausiblePower] = defaultdict(PlausiblePower)
        self._once = LogOnce(log)
        self.refresher: Refresher[Mapping[HwmonSensor, float | None]] = Refresher(
            "hwmon",
            self._read,
            options.interval,
            validity_seconds(options.interval),
            host.monotonic,
        )
        self.threads = (self.refresher,)

    def collect(self) -> list[MetricFamily]:
        observed = self.refresher.latest()
        if observed is None or not observed.value:
            return []
        families = [MetricFamily(ERRORS, [(NO_LABELS, self._errors)])]
        for metric, kind in ((POWER, "power"), (ENERGY, "energy")):
            samples = [
                (labels(chip=sensor.chip, sensor=sensor.sensor), value)
                for sensor, value in observed.value.items()
                if sensor.kind == kind and value is not None
            ]
            families += [MetricFamily(metric, samples)] if samples else []
        return families

    def meters(self) -> Sequence[Meter]:
        """The node, if its sensors are known or configured."""
        observed = self.refresher.latest()
        if observed is None:
            return ()
        chosen = node_sensors(tuple(observed.value), self._options.node_sensor)
        if chosen is None:
            return ()
        sensors, scope, includes_gpus = chosen
        read = partial(self._sum_sensors, sensors)
        return (Meter("hwmon", scope, includes_gpus, self._options.interval, read),)

    def _read(self) -> Mapping[HwmonSensor, float | None]:
        """Watts or joules of each sensor, None of one that failed."""
        if self._host.monotonic() - self._scanned_at >= _RESCAN_SECONDS:
            self._scanned_at = self._host.monotonic()
            self._sensors = scan(self._root)
        values: dict[HwmonSensor, float | None] = dict.fromkeys(self._sensors)
        for sensor in self._sensors:
            try:
                with open(sensor.path, encoding="ascii") as file:
                    value = int(file.read()) / 1e6
                if sensor.kind == "power" and not self._plausible[sensor].accept(value):
                    raise ValueError(f"{value:g} W is not plausible")
                values[sensor] = value
            except (OSError, ValueError) as error:
                self._errors += 1
                self._once.warning(sensor.path, "%s cannot be read: %s", sensor.path, error)
        return values

    def _sum_sensors(self, sensors: tuple[HwmonSensor, ...]) -> MeterReading | None:
        """The sum; None if one is missing, since the sum would be too low."""
        observed = self.refresher.latest()
        readings = [observed.value.get(sensor) for sensor in sensors] if observed else []
        values = [value for value in readings if value is not None]
        if observed is None or len(values) < len(sensors):
            return None
        total = sum(values)
        if sensors[0].kind == "energy":
            return MeterReading(observed.at, joules=total)
        series = sum(self._plausible[sensor].series for sensor in sensors)
        # A running node always draws power.
        return MeterReading(observed.at, watts=total, series=series) if total > 0 else None


def _prefer_energy(sensors: Sequence[HwmonSensor]) -> tuple[HwmonSensor, ...]:
    energy = tuple(sensor for sensor in sensors if sensor.kind == "energy")
    return energy or tuple(sensors)


COLLECTOR = CollectorModule(HwmonOptions, METRICS, lambda host, options, _: Hwmon(host, options))
