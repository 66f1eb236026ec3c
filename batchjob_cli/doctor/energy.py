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
    paths: tuple[str, ...]  # patterns, with {sysfs}
    mode: int
    absent: str
    refused: str


METERS = (
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
    sysfs = glob.escape(node.host.sysfs)
    patterns = (pattern.format(sysfs=sysfs) for pattern in meter.paths)
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
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
