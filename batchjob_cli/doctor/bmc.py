"""The management controller: permissions, readings, and response time."""

import grp
import os
import pwd
import stat
import time
from collections.abc import Callable
from typing import TypeVar

from batchjob.runtime.settings import SettingsError
from batchjob_cli.doctor.finding import Checks, ExaminedNode, Finding
from collectors.power.ipmi import collector as ipmi
from collectors.power.ipmi.in_band import find_device
from collectors.power.ipmi.message import IpmiError
from collectors.power.redfish.collector import redfish_reader
from collectors.power.redfish.power import RedfishError

T = TypeVar("T")

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
            return refused or Finding("ok", "readable")
    read_power, close = ipmi.power_reader(node.host, options)
    try:
        power, milliseconds = _call_timed(read_power)
    except IpmiError as error:
        return Finding("warning", str(error), _IPMI_ADVICE.get(error.reason, ""))
    finally:
        close()
    return Finding("ok", f"{power.watts:g} W by {power.source.upper()} in {milliseconds:.1f} ms")


def _check_device(node: ExaminedNode) -> Finding | None:
    """What prevents this process from using the kernel's driver."""
    path = find_device(node.host.dev)
    if path is None:
        return Finding("missing", "not present", _IPMI_ADVICE["no_device"])
    if os.access(path, os.R_OK):
        return None
    return Finding("missing", f"{path} is not readable ({_describe_owner(path)})", _UDEV)


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
        return Finding("warning", str(error))
    try:
        watts, milliseconds = _call_timed(service_reader.read)
    except RedfishError as error:
        return Finding("warning", str(error), _REDFISH_ADVICE.get(error.reason, ""))
    finally:
        service_reader.close()
    shown = ", ".join(f"{value:g} W (chassis {name})" for name, value in watts.items())
    return Finding("ok", f"{shown} in {milliseconds:.0f} ms, login included")


def _call_timed(read: Callable[[], T]) -> tuple[T, float]:
    began = time.monotonic()
    value = read()
    return value, (time.monotonic() - began) * 1000


CHECKS: Checks = {"ipmi": _check_ipmi, "redfish": _check_redfish}
