"""Meters of this node's energy, the one that the energy collector will use, and factors.

Of a management controller: permissions, readings, and response time.
"""

import grp
import os
import pwd
import stat
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from batchjob.runtime.formatting import format_duration
from batchjob.runtime.settings import SettingsError
from batchjob_cli.doctor.finding import Checks, ExaminedNode, Finding, missing, ok, warning
from collectors.emissions.providers.provider import EmissionFactor
from collectors.emissions.site_factors import ProviderPoller, SiteFactors
from collectors.power import cray, hwmon, powercap
from collectors.power.ipmi import collector as ipmi
from collectors.power.ipmi.in_band import find_device
from collectors.power.meter import METER_RANKING, BmcError
from collectors.power.redfish.collector import redfish_reader

T = TypeVar("T")

_CRAY_UPDATE_SECONDS = 0.3  # three updates of the node controller


def _check_rapl(node: ExaminedNode) -> Finding:
    root = f"{node.host.sysfs}/class/powercap"
    zones = list(powercap.zones(root))
    if powercap.is_masked(root):
        return missing(
            f"the container engine hides {root}",
            "run the container with --security-opt systempaths=unconfined, or the exporter "
            "on the host",
        )
    if not zones:
        return missing(
            f"no zones below {root}",
            "modprobe intel_rapl_msr (also for AMD); virtual machines have no such meter",
        )
    names = ", ".join(sorted({zone.domain.zone for zone in zones}))
    refused = sorted(filter(None, map(_read_error, zones)))
    if not refused:
        return ok(f"zones {names}")
    if any("Permission" in each for each in refused):
        return missing(
            f"zones {names}, but only root can read energy_uj",
            "give the exporter CAP_DAC_READ_SEARCH, or let udev change the group of energy_uj",
        )
    return missing(f"zones {names}, but {refused[0]}", "virtual machines lack the register")


def _read_error(zone: powercap.Zone) -> str:
    try:
        powercap.energy_joules(zone)
    except (OSError, ValueError) as error:
        return f"{zone.path}/energy_uj: {getattr(error, 'strerror', None) or error}"
    return ""


def _check_hwmon(node: ExaminedNode) -> Finding:
    sensors = hwmon.scan(f"{node.host.sysfs}/class/hwmon")
    if not sensors:
        return missing("no power or energy sensor", "modprobe acpi_power_meter")
    readable = [sensor for sensor in sensors if os.access(sensor.path, os.R_OK)]
    if not readable:
        advice = "give the exporter CAP_DAC_READ_SEARCH"
        return missing(f"{sensors[0].path} is not readable", advice)
    names = ", ".join(f"{sensor.chip}/{sensor.sensor}" for sensor in readable)
    options = node.options.get("hwmon")
    chosen = hwmon.node_sensors(readable, options.node_sensor if options else ())
    if chosen is None:
        return warning(
            f"{names}; none is known to measure the whole node",
            "if some do, set them with --collector.hwmon.node-sensor",
        )
    summed, scope, _ = chosen
    of_node = ", ".join(f"{sensor.chip}/{sensor.sensor}" for sensor in summed)
    return ok(f"{names}; for the {scope}: {of_node}")


def _check_cray(node: ExaminedNode) -> Finding | None:
    directory = f"{node.host.sysfs}/cray/pm_counters"
    try:
        before = cray.read(directory)
        time.sleep(_CRAY_UPDATE_SECONDS)
        after = cray.read(directory)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return missing(f"{directory}: {error}", "contact HPE: the counters have an unknown format")
    if before is not None and after is not None and before.freshness == after.freshness:
        return missing(f"{directory} is not updated", "restart the node controller")
    return ok(directory)


_UDEV = (
    'give a group access with a udev rule: KERNEL=="ipmi*", GROUP="ipmi", MODE="0640"; anyone who'
    " can open the device can also power off the node"
)

_IPMI_ADVICE = {
    "authentication": "check collector.ipmi.user, collector.ipmi.password-file and the BMC's log",
    "busy": "try again later; other programs may be querying the BMC as well",
    "no_device": "modprobe ipmi_si ipmi_devintf, if the machine has a BMC",
    "no_reading": "enable power measurement in the BMC's settings",
    "permission": _UDEV,
    "privilege": "raise collector.ipmi.privilege to operator, if the user may request it",
    "timeout": "check the BMC's address, or reset a BMC that hangs: ipmitool mc reset cold",
    "unsupported": "set collector.ipmi.sensor, or use another meter",
}

_UNREACHABLE = "check collector.redfish.url and the network route to the controller"
_REDFISH_ADVICE = {
    "ambiguous": "set collector.redfish.system to this node's system",
    "authentication": "check collector.redfish.user and collector.redfish.password-file",
    "deadline": _UNREACHABLE,
    "no_reading": "set collector.redfish.chassis",
    "tls": "set collector.redfish.ca-file to the CA of the certificate",
    "unreachable": _UNREACHABLE,
}


def _check_ipmi(node: ExaminedNode) -> Finding:
    """Query the BMC once, unless the collector is off."""
    options = node.options.get("ipmi")
    if options is None or options.access == "device":
        refused = _check_device(node)
        if refused is not None or options is None:
            return refused or ok("readable")
    read_power, close = ipmi.power_reader(node.host, options)
    try:
        power, milliseconds = _call_timed(read_power)
    except BmcError as error:
        return warning(str(error), _IPMI_ADVICE.get(error.reason, ""))
    finally:
        close()
    return ok(f"{power.watts:g} W by {power.source.upper()} in {milliseconds:.1f} ms")


def _check_device(node: ExaminedNode) -> Finding | None:
    """What prevents this process from using the kernel's driver."""
    path = find_device(node.host.dev)
    if path is None:
        return missing("not present", _IPMI_ADVICE["no_device"])
    if os.access(path, os.R_OK):
        return None
    return missing(f"{path} is not readable ({_describe_owner(path)})", _UDEV)


def _describe_owner(path: str) -> str:
    status = os.stat(path)
    user = _name_or_number(pwd.getpwuid, status.st_uid)
    group = _name_or_number(grp.getgrgid, status.st_gid)
    return f"{user}:{group} {stat.filemode(status.st_mode)}"


def _name_or_number(look_up: Callable[[int], tuple[object, ...]], number: int) -> object:
    try:
        return look_up(number)[0]
    except KeyError:
        return number


def _check_redfish(node: ExaminedNode) -> Finding | None:
    options = node.options.get("redfish")
    if options is None:
        return None
    try:
        service_reader = redfish_reader(options)
    except SettingsError as error:
        return warning(str(error))
    try:
        watts, milliseconds = _call_timed(service_reader.read)
    except BmcError as error:
        return warning(str(error), _REDFISH_ADVICE.get(error.reason, ""))
    finally:
        service_reader.close()
    shown = ", ".join(f"{value:g} W (chassis {name})" for name, value in watts.items())
    return ok(f"{shown} in {milliseconds:.0f} ms, login included")


def _call_timed(read: Callable[[], T]) -> tuple[T, float]:
    began = time.monotonic()
    value = read()
    return value, (time.monotonic() - began) * 1000


_METERS: Checks = {
    "rapl": _check_rapl,
    "hwmon": _check_hwmon,
    "cray": _check_cray,
    "ipmi": _check_ipmi,
    "redfish": _check_redfish,
}


def _check_factors(node: ExaminedNode) -> Finding | None:
    """Query each configured provider once."""
    options = node.options.get("emissions")
    if options is None:
        return None
    try:
        factors = SiteFactors.of_site(options)
    except SettingsError as error:
        return warning(str(error))
    for source in factors.pollers:
        source.refresher.refresh()
    silent = [source.name for source in factors.pollers if not source.current()]
    shown = "; ".join(map(_format_factor, factors.current())) or "no current factor"
    if not silent:
        return ok(shown)
    return warning(
        f"{shown}; no factor from {', '.join(silent)} ({_error_reasons(factors.pollers)})",
        "on nodes without internet access, read factors from batchjob_stats_server: "
        "collector.emissions.server-url",
    )


def _format_factor(factor: EmissionFactor) -> str:
    grams = f"{factor.grams_per_kilowatt_hour:g} g/kWh"
    age = format_duration(factor.age_seconds(time.time()))
    return f"{factor.provider} {factor.zone}: {grams} ({factor.scope}, {age} old)"


def _error_reasons(sources: Sequence[ProviderPoller]) -> str:
    found = {reason for each in sources for reason, count in each.errors.items() if count}
    return ", ".join(sorted(found))


def _check_source(node: ExaminedNode) -> Finding | None:
    """The energy collector's choice: by configuration, else the best one that answers."""
    options = node.options.get("energy")
    if node.options and options is None:
        return None
    configured_source = options.source if options else "auto"
    enabled = [name for name in METER_RANKING if name in _METERS and _is_enabled(name, node)]
    responding = [name for name in enabled if _is_responding(name, node)]
    if configured_source != "auto":
        responding = [name for name in responding if name == configured_source]
    if not responding:
        return missing(
            "no meter responds: no job energy"
            if configured_source == "auto"
            else f"{configured_source} does not respond",
            "see the meters above; Redfish and a BMC over the network must be configured",
        )
    if responding[0] == "rapl":
        return warning("from rapl: only processors and memory, not the whole node")
    return ok(f"from {responding[0]} (of {', '.join(responding)})")


def _is_enabled(name: str, node: ExaminedNode) -> bool:
    """Whether a collector is on; a BMC is queried only if it is enabled explicitly."""
    return name in node.options or (not node.options and name in ("cray", "hwmon", "rapl"))


def _is_responding(name: str, node: ExaminedNode) -> bool:
    finding = _METERS[name](node)
    return finding is not None and finding.result == "ok"


CHECKS: Checks = {**_METERS, "job energy": _check_source, "emission factors": _check_factors}
