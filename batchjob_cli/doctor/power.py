"""Meters of this node's energy."""

import os
import time

from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding
from collectors.power import cray, hwmon, powercap

_CRAY_UPDATE_SECONDS = 0.3  # three updates of the node controller


def _check_rapl(node: ExaminedNode) -> Finding:
    root = powercap.root_directory(node.host.sysfs)
    zones = list(powercap.zones(root))
    if powercap.is_masked(root):
        return Finding(
            "missing",
            f"the container engine hides {root}",
            "run the container with --security-opt systempaths=unconfined, or the exporter "
            "on the host",
        )
    if not zones:
        return Finding(
            "missing",
            f"no zones below {root}",
            "modprobe intel_rapl_msr (also for AMD); virtual machines have no such meter",
        )
    names = ", ".join(sorted({zone.domain.zone for zone in zones}))
    refused = sorted(filter(None, map(_read_error, zones)))
    if not refused:
        return Finding("ok", f"zones {names}")
    if any("Permission" in each for each in refused):
        return Finding(
            "missing",
            f"zones {names}, but only root can read energy_uj",
            "give the exporter CAP_DAC_READ_SEARCH, or let udev change the group of energy_uj",
        )
    return Finding(
        "missing", f"zones {names}, but {refused[0]}", "virtual machines lack the register"
    )


def _read_error(zone: powercap.Zone) -> str:
    try:
        powercap.energy_joules(zone)
    except (OSError, ValueError) as error:
        return f"{zone.path}/energy_uj: {getattr(error, 'strerror', None) or error}"
    return ""


def _check_hwmon(node: ExaminedNode) -> Finding:
    sensors = hwmon.scan(f"{node.host.sysfs}/class/hwmon")
    if not sensors:
        return Finding("missing", "no power or energy sensor", "modprobe acpi_power_meter")
    readable = [sensor for sensor in sensors if os.access(sensor.path, os.R_OK)]
    if not readable:
        advice = "give the exporter CAP_DAC_READ_SEARCH"
        return Finding("missing", f"{sensors[0].path} is not readable", advice)
    names = ", ".join(f"{sensor.chip}/{sensor.sensor}" for sensor in readable)
    options = node.options.get("hwmon")
    chosen = hwmon.node_sensors(readable, options.node_sensor if options else ())
    if chosen is None:
        return Finding(
            "warning",
            f"{names}; none is known to measure the whole node",
            "if some do, set them with --collector.hwmon.node-sensor",
        )
    summed, scope, _ = chosen
    of_node = ", ".join(f"{sensor.chip}/{sensor.sensor}" for sensor in summed)
    return Finding("ok", f"{names}; for the {scope}: {of_node}")


def _check_cray(node: ExaminedNode) -> Finding | None:
    directory = f"{node.host.sysfs}/cray/pm_counters"
    try:
        before = cray.read(directory)
        time.sleep(_CRAY_UPDATE_SECONDS)
        after = cray.read(directory)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return Finding(
            "missing", f"{directory}: {error}", "contact HPE: the counters have an unknown format"
        )
    if before is not None and after is not None and before.freshness == after.freshness:
        return Finding("missing", f"{directory} is not updated", "restart the node controller")
    return Finding("ok", directory)


CHECKS = (Check("rapl", _check_rapl), Check("hwmon", _check_hwmon), Check("cray", _check_cray))
