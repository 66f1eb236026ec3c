"""The node's power from its BMC: in-band through the kernel's driver, or over the network."""

import os
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from batchjob.runtime.settings import SettingsError, option
from batchjob.runtime.values import duration, one_of
from batchjob.secret_files import secret_file
from collectors.collector import CollectorModule
from collectors.host import Host
from collectors.metric import Labels, Metric, MetricFamily, labels
from collectors.power.ipmi.in_band import open_device
from collectors.power.ipmi.lan import PRIVILEGES, LanSession
from collectors.power.ipmi.message import REASONS, Bmc, Power
from collectors.power.ipmi.power import BmcPower, password_on_command_line, read_tool
from collectors.power.meter import BmcCollector, BmcError, BmcReading, PlausiblePower

# fmt: off
POWER = Metric("batchjob_ipmi_power_watts", "gauge",
    "Power of the node measured by its BMC; min, max and average are over the sampling period of "
    "the BMC.", ("statistic",))
SENSOR = Metric("batchjob_ipmi_sensor_power_watts", "gauge",
    "Power of each sensor that is summed for the power of the node, if the BMC does not support "
    "DCMI.", ("sensor",))
AGE = Metric("batchjob_ipmi_age_seconds", "gauge", "Age of the power reading of the BMC.")
# fmt: on
ERRORS = Metric("batchjob_ipmi_errors_total", "counter", "Failed reads of the BMC.", ("reason",))
METRICS = (POWER, SENSOR, AGE, ERRORS)

_PAUSE_SECONDS = {
    "authentication": 600.0,  # refused logins may lock the account
    "no_device": 60.0,
    "permission": 600.0,
    "unsupported": 3600.0,  # DCMI support does not change within an hour
}


def command_line(value: object) -> str:
    """Check a command line, which is split like in a shell but run without one."""
    if not isinstance(value, str):
        raise ValueError(f"expected a command line, got {value!r}")
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"expected a command line, got {value!r}: {error}") from error
    flag = password_on_command_line(words)
    if flag:
        raise ValueError(f"{flag} exposes the password to every user; give the tool a file instead")
    return value


@dataclass(frozen=True)
class IpmiOptions:
    # fmt: off
    access: str = option("device",
        "How to reach the BMC: kernel driver, network, or a command.", parse=one_of("device", "lan",
        "command"))
    source: str = option("auto",
        "What to read: DCMI, power sensors, or auto: DCMI if the BMC supports it, otherwise power "
        "sensors.", parse=one_of("auto", "dcmi", "sdr"))
    sensor: tuple[str, ...] = option((),
        "Name of a power sensor that measures the node, to read instead of DCMI.", repeat=True)
    # fmt: on
    interval: float = option(10.0, "Interval between readings.", parse=duration)
    timeout: float = option(5.0, "Maximum time to wait for an answer.", parse=duration)
    host: str = option("", "Name or address of the BMC (lan); {node} is this host's short name.")
    port: int = option(623, "UDP port of the BMC (lan).")
    user: str = option("", "User name for the BMC (lan).")
    password_file: str = option("", "File with the password (lan).", parse=secret_file)
    privilege: str = option("user", "Privilege level to request (lan).", parse=one_of(*PRIVILEGES))
    # fmt: off
    command: str = option("",
        "Command to run: ipmitool, ipmi-dcmi or ipmiutil (command).", parse=command_line)
    # fmt: on


class IpmiCollector(BmcCollector):
    meter_name, age_metric, error_metric, error_reasons = "ipmi", AGE, ERRORS, REASONS
    pause_seconds = _PAUSE_SECONDS

    def __init__(
        self,
        host: Host,
        options: IpmiOptions,
        read_power: Callable[[], Power],
        close: Callable[[], None],
    ) -> None:
        super().__init__(host, close, options.interval, options.timeout)
        self._read_power = read_power
        self._plausible = PlausiblePower()

    def read_bmc(self) -> BmcReading:
        power = self._read_power()
        if not self._plausible.accept(power.watts):
            raise BmcError("implausible", f"the BMC reports {power.watts:g} W")
        limit_watts = self._plausible.limit_watts()
        plausible = [each for each in power.statistics if each[1] <= limit_watts]
        statistics = [("current", power.watts), *plausible]
        families = [MetricFamily(POWER, [(labels(statistic=name), x) for name, x in statistics])]
        if power.sensors:
            families.append(MetricFamily(SENSOR, _sensor_samples(power, limit_watts)))
        return BmcReading(power.watts, self._plausible.series, families)


def _sensor_samples(power: Power, limit_watts: float) -> list[tuple[Labels, float]]:
    """Samples by sensor; a number is appended to names that occur more than once."""
    occurrences: Counter[str] = Counter()
    samples = []
    for name, watts in power.sensors:
        if watts > limit_watts:
            continue
        occurrences[name] += 1
        unique_name = name if occurrences[name] == 1 else f"{name} #{occurrences[name]}"
        samples.append((labels(sensor=unique_name), watts))
    return samples


def power_reader(
    host: Host, options: IpmiOptions
) -> tuple[Callable[[], Power], Callable[[], None]]:
    """The functions that read the power by the access that the options select, and end it."""
    if options.access == "command":
        words = tuple(shlex.split(options.command))
        if not words:
            message = "collector.ipmi.command: expected for collector.ipmi.access=command"
            raise SettingsError(message)
        return lambda: read_tool(words, options.timeout), lambda: None
    connect = (lambda: open_device(host.dev)) if options.access == "device" else _lan(options)
    bmc = BmcPower(connect, options.timeout, options.source, options.sensor)
    return bmc.read, bmc.close


def _lan(options: IpmiOptions) -> Callable[[], Bmc]:
    for name in ("host", "user", "password_file"):
        if not getattr(options, name):
            flag = name.replace("_", "-")
            raise SettingsError(f"collector.ipmi.{flag}: expected for collector.ipmi.access=lan")
    if not 0 < options.port < 65536:
        raise SettingsError(f"collector.ipmi.port: expected 1 to 65535, got {options.port}")
    host = options.host.replace("{node}", os.uname().nodename.partition(".")[0])
    user, password_file, privilege = options.user, options.password_file, options.privilege
    return lambda: LanSession(host, options.port, user, password_file, privilege)


COLLECTOR = CollectorModule(
    IpmiOptions,
    METRICS,
    lambda host, options, _: IpmiCollector(host, options, *power_reader(host, options)),
)
