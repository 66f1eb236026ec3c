"""The node's power from one BMC, by DCMI, by sensors, or by an external tool."""

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from collectors.power.ipmi.choice import is_supply_input, node_sensors
from collectors.power.ipmi.dcmi import PowerReading, read_power
from collectors.power.ipmi.message import Bmc, CompletionError, IpmiError
from collectors.power.ipmi.sdr import IpmiSensor, find_power_sensors, read_sensor

log = logging.getLogger(__name__)

_REPOSITORY_SECONDS = 180.0  # reads hundreds of records, at some 50 ms per part
_FAILURES_BEFORE_NEW_CHOICE = 3


class SensorReading(NamedTuple):
    """One power sensor's watts."""

    name: str
    watts: float


class Power(NamedTuple):
    """The node's power, and the other values of its source."""

    source: str  # dcmi or sdr
    watts: float
    statistics: tuple[tuple[str, float], ...] = ()  # min, max and average over the period
    period_seconds: float | None = None
    active: bool | None = None  # DCMI: whether the BMC states that it measures
    sensors: tuple[SensorReading, ...] = ()


class BmcPowerReader(Protocol):
    """Reads the node's power, or raises IpmiError."""

    def read(self) -> Power:
        """Read now; may wait until its deadline."""

    def close(self) -> None:
        """Release what is open; safe to call twice, from any thread."""


def power_from_dcmi(reading: PowerReading) -> Power:
    """DCMI's reading; statistics only if the BMC has any."""
    assert reading.current_watts is not None
    statistics = (
        ("min", reading.minimum_watts),
        ("max", reading.maximum_watts),
        ("average", reading.average_watts),
    )
    known_statistics = ((name, float(watts)) for name, watts in statistics if watts is not None)
    return Power(
        source="dcmi",
        watts=float(reading.current_watts),
        statistics=tuple(known_statistics) if reading.period_seconds else (),
        period_seconds=reading.period_seconds or None,
        active=reading.active,
    )


class BmcPower:
    """Queries a BMC. DCMI or sensors are chosen once, and again only after consecutive failures."""

    def __init__(
        self,
        connect: Callable[[], Bmc],
        timeout: float,
        source: str = "auto",
        sensors: tuple[str, ...] = (),
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._source = "sdr" if sensors else source
        self._sensor_names = sensors
        self._bmc: Bmc | None = None
        self._read_power: Callable[[Bmc], Power] | None = None
        self._failures = 0

    def read(self) -> Power:
        """Read now, connecting first if necessary."""
        try:
            if self._bmc is None:
                self._bmc = self._connect()
            if self._read_power is None:
                self._read_power = self._choose_source(self._bmc)
            power = self._read_power(self._bmc)
        except IpmiError as error:
            self._record_failure(error)
            raise
        self._failures = 0
        return power

    def close(self) -> None:
        """Close the connection; a request in another thread then fails."""
        bmc, self._bmc = self._bmc, None
        if bmc is not None:
            bmc.close()

    def _record_failure(self, error: IpmiError) -> None:
        self._failures += 1
        if self._failures >= _FAILURES_BEFORE_NEW_CHOICE:
            self._read_power = None
        if not isinstance(error, CompletionError) and error.reason != "no_reading":
            self.close()  # discards outstanding answers

    def _choose_source(self, bmc: Bmc) -> Callable[[Bmc], Power]:
        if self._source == "sdr":
            return self._find_sensors(bmc)
        try:
            read_power(bmc, self._timeout)
        except IpmiError as error:
            if self._source == "dcmi" or error.reason not in ("unsupported", "no_reading"):
                raise
            log.info("no power by DCMI (%s): looking for power sensors", error)
            return self._find_sensors(bmc)
        return self._read_dcmi

    def _read_dcmi(self, bmc: Bmc) -> Power:
        return power_from_dcmi(read_power(bmc, self._timeout))

    def _find_sensors(self, bmc: Bmc) -> Callable[[Bmc], Power]:
        sensors = find_power_sensors(bmc, self._timeout, _REPOSITORY_SECONDS)
        chosen = node_sensors(sensors, self._sensor_names)
        if not chosen:
            names = ", ".join(sensor.name for sensor in sensors) or "none"
            raise IpmiError(
                "unsupported", f"no sensor measures the power of the node (sensors in W: {names})"
            )
        log.info("node power is the sum of: %s", ", ".join(sensor.name for sensor in chosen))
        return lambda bmc: read_sensors(bmc, chosen, self._timeout)


def read_sensors(bmc: Bmc, chosen: tuple[IpmiSensor, ...], timeout: float) -> Power:
    """The sum of the sensors. A power supply without a reading is unplugged and counts as 0.

    Any other sensor without a reading makes the sum unknown.
    """
    readings = [(sensor, read_sensor(bmc, sensor, timeout)) for sensor in chosen]
    missing = [s.name for s, watts in readings if watts is None and not is_supply_input(s.name)]
    read_values = tuple(SensorReading(s.name, watts) for s, watts in readings if watts is not None)
    total = sum(each.watts for each in read_values)
    if missing or total <= 0:
        names = ", ".join(missing) or "any of the sensors"
        raise IpmiError("no_reading", f"no reading from {names}")
    return Power("sdr", total, sensors=read_values)
