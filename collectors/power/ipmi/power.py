"""The node's power from one BMC, by DCMI, by sensors, or by an external tool.

DCMI is the BMC's own statistics of the node's power (DCMI 1.5, sections 6.1.1 and 6.6.1).

Sensors that together measure the node are either one sensor of the whole node, or else the power
supplies' inputs. Never both, never an input with an output, never limits or parts of the node.

The tool is ipmitool, FreeIPMI's ipmi-dcmi or ipmiutil, recognised by its output: for sites that
allow the exporter exactly one command, for example by sudo.
"""

import logging
import re
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from batchjob.runtime.subprocesses import CommandTimeoutError, SchedulerError, call
from collectors.power.ipmi.message import Bmc, CompletionError, Power, Request
from collectors.power.ipmi.sdr import IpmiSensor, find_power_sensors, read_sensor
from collectors.power.meter import BmcError

log = logging.getLogger(__name__)

_REPOSITORY_SECONDS = 180.0  # reads hundreds of records, at some 50 ms per part
_FAILURES_BEFORE_NEW_CHOICE = 3

_GROUP_EXTENSION = 0x2C
_DCMI = 0xDC
_POWER_READING = Request(_GROUP_EXTENSION, 0x02, bytes((_DCMI, 0x01, 0x00, 0x00)))
# After the watts: the time of the BMC's own clock, which is often wrong, and the period of the
# statistics in milliseconds.
_LAYOUT = struct.Struct("<BHHHHIIB")
_ACTIVE = 0x40
_NOT_MEASURED = (0, 0xFFFF)  # a running node draws more than 0 W; all ones means not implemented
_ATTEMPTS = 3  # some boards answer "busy" or "unspecified" at first
RETRY_SECONDS = 0.2

_WHOLE_NODE = (
    "pwr consumption", "system level", "total power", "sys power", "system power", "power meter",
    "pw consumption", "power consumption", "node power",
)  # fmt: skip
_SUPPLY_INPUT = re.compile(r"(psu?|power supply) ?\d+.*\b(in|pin|input)\b")
_NO_MEASUREMENT = re.compile(r"\b(cap|limit|max|min|rated|peak|avg|average)\b")

_OUTPUT_LIMIT = 64 * 1024
_WATTS = r"[^:\n]*:\s*(\d+)\s*watts"
# Texts printed by ipmitool 1.8.18 and 1.8.19, ipmi-dcmi (FreeIPMI 1.6) and ipmiutil 3.1.
_TOOL_CURRENT = re.compile(
    r"^\s*(?:Instantaneous power reading|Current Power)" + _WATTS, re.I | re.M
)
_TOOL_STATISTICS = (
    ("min", re.compile(r"^\s*Min(?:imum)?\b" + _WATTS, re.I | re.M)),
    ("max", re.compile(r"^\s*Max(?:imum)?\b" + _WATTS, re.I | re.M)),
    ("average", re.compile(r"^\s*(?:Average|Avg)\b" + _WATTS, re.I | re.M)),
)
# ipmitool 1.8.19 prints the period after the time stamp, on the same line.
_TOOL_PERIOD = re.compile(r"(?:Sampling period|Statistics reporting time period)\s*:\s*0*[1-9]")
_PASSWORD_FLAGS = {"ipmitool": ("-P",), "ipmi-dcmi": ("-p", "--password"), "ipmiutil": ("-P",)}


@dataclass(eq=False)
class BmcPower:
    """Queries a BMC. DCMI or sensors are chosen once, and again only after consecutive failures."""

    connect: Callable[[], Bmc]
    timeout: float
    source: str = "auto"
    sensors: tuple[str, ...] = ()
    """The names of those that are configured, which are read whatever the source."""
    _bmc: Bmc | None = None
    _read_power: Callable[[Bmc], Power] | None = None
    _failures: int = 0

    def read(self) -> Power:
        try:
            if self._bmc is None:
                self._bmc = self.connect()
            if self._read_power is None:
                self._read_power = self._choose_source(self._bmc)
            power = self._read_power(self._bmc)
        except BmcError as error:
            self._failures += 1
            if self._failures >= _FAILURES_BEFORE_NEW_CHOICE:
                self._read_power = None
            if not isinstance(error, CompletionError) and error.reason != "no_reading":
                self.close()  # discards outstanding answers
            raise
        self._failures = 0
        return power

    def close(self) -> None:
        """Close the connection; a request in another thread then fails."""
        bmc, self._bmc = self._bmc, None
        if bmc is not None:
            bmc.close()

    def _choose_source(self, bmc: Bmc) -> Callable[[Bmc], Power]:
        if self.source == "sdr" or self.sensors:
            return self._find_sensors(bmc)
        read = partial(read_dcmi, timeout=self.timeout)
        try:
            read(bmc)
        except BmcError as error:
            if self.source == "dcmi" or error.reason not in ("unsupported", "no_reading"):
                raise
            log.info("no power by DCMI (%s): looking for power sensors", error)
            return self._find_sensors(bmc)
        return read

    def _find_sensors(self, bmc: Bmc) -> Callable[[Bmc], Power]:
        sensors = find_power_sensors(bmc, self.timeout, _REPOSITORY_SECONDS)
        chosen = node_sensors(sensors, self.sensors)
        if not chosen:
            names = ", ".join(sensor.name for sensor in sensors) or "none"
            raise BmcError(
                "unsupported", f"no sensor measures the power of the node (sensors in W: {names})"
            )
        log.info("node power is the sum of: %s", ", ".join(sensor.name for sensor in chosen))
        return lambda bmc: read_sensors(bmc, chosen, self.timeout)


def read_sensors(bmc: Bmc, chosen: tuple[IpmiSensor, ...], timeout: float) -> Power:
    """The sum of the sensors. A power supply without a reading is unplugged and counts as 0.

    Any other sensor without a reading makes the sum unknown.
    """
    readings = [(sensor, read_sensor(bmc, sensor, timeout)) for sensor in chosen]
    missing = [s.name for s, watts in readings if watts is None and not is_supply_input(s.name)]
    read_values = tuple((s.name, watts) for s, watts in readings if watts is not None)
    total = sum(watts for _, watts in read_values)
    if missing or total <= 0:
        names = ", ".join(missing) or "any of the sensors"
        raise BmcError("no_reading", f"no reading from {names}")
    return Power("sdr", total, sensors=read_values)


def node_sensors(
    sensors: Sequence[IpmiSensor], names: Sequence[str] = ()
) -> tuple[IpmiSensor, ...]:
    """The sensors whose sum is the node's power; `names`: those configured, if any."""
    if names:
        normalized = {_normalize(name) for name in names}
        return tuple(sensor for sensor in sensors if _normalize(sensor.name) in normalized)
    measured = [each for each in sensors if not _NO_MEASUREMENT.search(_normalize(each.name))]
    for name in _WHOLE_NODE:
        for sensor in measured:
            if _normalize(sensor.name) == name:
                return (sensor,)
    return tuple(each for each in measured if is_supply_input(each.name))


def is_supply_input(name: str) -> bool:
    return bool(_SUPPLY_INPUT.search(_normalize(name)))


def _normalize(name: str) -> str:
    """Lower case, with a blank for each run of other characters: `PSU0_PIN` is `psu0 pin`."""
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))


def parse_power_reading(data: bytes) -> Power:
    """Decode the 18 bytes of the answer, mode "system power statistics" (DCMI 1.5, table 6-16).

    Statistics are absent if the BMC keeps none. Some BMCs state that they do not measure, but
    report correct watts. Raises BmcError, `no_reading` if there are none.
    """
    if len(data) < _LAYOUT.size or data[0] != _DCMI:
        raise BmcError("malformed", f"DCMI power reading of {len(data)} bytes: {data.hex(' ')}")
    _, current, minimum, maximum, average, _, period, state = _LAYOUT.unpack_from(data)
    if current in _NOT_MEASURED:
        state_text = "active" if state & _ACTIVE else "deactivated"
        raise BmcError("no_reading", f"DCMI reports no power (measurement is {state_text})")
    statistics = (("min", minimum), ("max", maximum), ("average", average))
    return Power(
        source="dcmi",
        watts=float(current),
        statistics=tuple(
            (name, float(watts))
            for name, watts in statistics
            if period and watts not in _NOT_MEASURED
        ),
    )


def read_dcmi(bmc: Bmc, timeout: float) -> Power:
    """Query the node's power; BmcError `no_reading` if the BMC measures none."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return parse_power_reading(bmc.query(_POWER_READING, timeout))
        except CompletionError as error:
            if error.reason not in ("busy", "completion_code"):
                raise
        time.sleep(RETRY_SECONDS)
    return parse_power_reading(bmc.query(_POWER_READING, timeout))


def password_on_command_line(argv: tuple[str, ...]) -> str | None:
    """The flag of this command line that exposes a password to every user, if any."""
    for position, word in enumerate(argv):
        for flag in _PASSWORD_FLAGS.get(word.rsplit("/", 1)[-1], ()):
            for argument in argv[position + 1 :]:
                if argument == flag or (len(flag) > 2 and argument.startswith(f"{flag}=")):
                    return flag
    return None


def parse_tool_output(text: str) -> Power:
    """The power in the tool's output; BmcError if there are no watts, which may be 0."""
    current = _TOOL_CURRENT.search(text)
    if current is None:
        beginning = " ".join(text.split())[:100]
        raise BmcError("tool", f"no power reading in the output: {beginning!r}")
    matches = ((name, pattern.search(text)) for name, pattern in _TOOL_STATISTICS)
    period = _TOOL_PERIOD.search(text)
    return Power(
        source="dcmi",
        watts=float(current[1]),
        statistics=tuple(
            (name, float(match[1])) for name, match in matches if period and match and int(match[1])
        ),
    )


def read_tool(argv: Sequence[str], timeout: float) -> Power:
    """Run the command once; at the deadline it is killed with its children. Raises BmcError."""
    try:
        output = call(argv, timeout=timeout, output_limit=_OUTPUT_LIMIT)
    except CommandTimeoutError as error:
        raise BmcError("timeout", str(error)) from error
    except SchedulerError as error:
        raise BmcError("tool", str(error)) from error
    power = parse_tool_output(output.decode("utf-8", "replace"))
    if power.watts == 0:
        raise BmcError("no_reading", f"{argv[0]} reports 0 W")
    return power
