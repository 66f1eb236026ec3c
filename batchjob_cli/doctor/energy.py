"""Meters of this node's energy."""

import glob
import os
from functools import partial
from typing import NamedTuple

from batchjob_cli.doctor.check import Check, Finding, Node
from collectors import powercap


def _rapl(node: Node) -> Finding:
    root = powercap.root_of(node.host.sysfs)
    zones = list(powercap.zones(root))
    if powercap.masked(root):
        return Finding(
            "missing",
            f"the container's engine hides {root}",
            "run the container with --security-opt systempaths=unconfined, or the exporter outside",
        )
    if not zones:
        return Finding(
            "missing",
            f"no zones below {root}",
            "modprobe intel_rapl_msr (it serves AMD as well); virtual machines have no such meter",
        )
    names = ", ".join(sorted({zone.place.zone for zone in zones}))
    refused = [zone.path for zone in zones if not os.access(f"{zone.path}/energy_uj", os.R_OK)]
    if not refused:
        return Finding("ok", f"zones {names}")
    return Finding(
        "missing",
        f"zones {names}, but energy_uj is for root only",
        "give the exporter CAP_DAC_READ_SEARCH, or let udev change the group of energy_uj",
    )


class Meter(NamedTuple):
    """Files that a meter shows itself by."""

    name: str
    paths: tuple[str, ...]  # patterns, with {dev} or {sysfs}
    mode: int
    absent: str
    refused: str


METERS = (
    Meter(
        "ipmi",
        ("{dev}/ipmi0", "{dev}/ipmi/0", "{dev}/ipmidev/0"),
        os.R_OK | os.W_OK,
        "modprobe ipmi_si ipmi_devintf, if the machine has a BMC",
        "let udev give the device to a group of the exporter",
    ),
    Meter(
        "hwmon",
        (
            "{sysfs}/class/hwmon/hwmon*/power*_average",
            "{sysfs}/class/hwmon/hwmon*/power*_input",
            "{sysfs}/class/hwmon/hwmon*/energy*_input",
        ),
        os.R_OK,
        "none: it depends on the mainboard (acpi_power_meter, ina2xx and others)",
        "give the exporter CAP_DAC_READ_SEARCH",
    ),
    Meter(
        "cray",
        ("{sysfs}/cray/pm_counters/power",),
        os.R_OK,
        "",
        "give the exporter CAP_DAC_READ_SEARCH",
    ),
)


def _meter(meter: Meter, node: Node) -> Finding | None:
    roots = {"dev": glob.escape(node.host.dev), "sysfs": glob.escape(node.host.sysfs)}
    found = [path for pattern in meter.paths for path in sorted(glob.glob(pattern.format(**roots)))]
    if not found:
        return Finding("missing", "not there", meter.absent) if meter.absent else None
    usable = [path for path in found if os.access(path, meter.mode)]
    if not usable:
        return Finding("missing", f"{found[0]} may not be read", meter.refused)
    more = f" and {len(usable) - 1} more" if len(usable) > 1 else ""
    return Finding("ok", usable[0] + more)


CHECKS = (
    Check("rapl", _rapl),
    *(Check(each.name, partial(_meter, each)) for each in METERS),
)
