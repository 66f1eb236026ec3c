"""The RAPL zones of the powercap tree in sysfs, and what each of them counts.

Source: Linux Documentation/power/powercap/powercap.rst, drivers/powercap/intel_rapl_common.c. The
driver also serves AMD and Hygon, under the name intel-rapl.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from collectors.host import list_directory, read_text

# Ids are hexadecimal (powercap_sys.c prints "%x") and do not identify the socket; `name` does.
_ZONE = re.compile(r"intel-rapl(-mmio)?:[0-9a-f]+(?::[0-9a-f]+)?")
_PACKAGE = re.compile(r"package-(\d+)(?:-die-\d+)?")
_PSYS = re.compile(r"psys(?:-(\d+))?")
_AMD = frozenset({"AuthenticAMD", "HygonGenuine"})
# Two reads of the same register, microseconds apart, differ by less than this.
_DUPLICATE_JOULES = 1.0


class ZoneDomain(NamedTuple):
    """What a zone counts: package, dram, core, uncore or psys, and the socket if it has one."""

    zone: str
    package: str


class Zone(NamedTuple):
    path: str
    domain: ZoneDomain
    mmio: bool  # accessed by memory-mapped I/O: the same register as the package's
    range_joules: float | None  # the counter wraps at this value; None: unknown
    max_watts: float | None  # highest limit allowed by the manufacturer; None: unknown


def zones(root: str) -> Iterator[Zone]:
    """All RAPL zones with a known domain below /sys/class/powercap, which is flat."""
    for entry in list_directory(root):
        match = _ZONE.fullmatch(entry)
        domain = _read_domain(root, entry) if match else None
        if match and domain:
            path = f"{root}/{entry}"
            yield Zone(
                path,
                domain,
                bool(match[1]),
                _read_micro_units(f"{path}/max_energy_range_uj"),
                max(_read_all(path, r"constraint_\d+_max_power_uw"), default=None),
            )


def is_masked(root: str) -> bool:
    """Whether zones are listed but none is accessible: container engines mask them."""
    listed = [entry for entry in list_directory(root) if _ZONE.fullmatch(entry)]
    return bool(listed) and not any(read_text(f"{root}/{entry}/name") for entry in listed)


def zones_to_count(root: str, cpuinfo: str) -> tuple[Zone, ...]:
    """The zones whose energy is exposed, without duplicates.

    Left out: mmio if the package exists without it; on AMD `core`, which is a single core, and
    dies that repeat their socket's counter (Linux before 6.12 makes a zone per die).
    """
    selected = list(zones(root))
    native = {zone.domain for zone in selected if not zone.mmio}
    selected = [zone for zone in selected if not (zone.mmio and zone.domain in native)]
    if _read_cpu_vendor(cpuinfo) in _AMD:
        selected = [zone for zone in selected if zone.domain.zone != "core"]
        duplicates = _duplicate_paths(selected)
        selected = [zone for zone in selected if zone.path not in duplicates]
    return tuple(selected)


def energy_joules(zone: Zone) -> float:
    """The zone's counter. Raises OSError, and ValueError if it is not a number."""
    with open(f"{zone.path}/energy_uj", encoding="ascii") as file:
        return int(file.read()) / 1e6


def _read_domain(root: str, entry: str) -> ZoneDomain | None:
    name = read_text(f"{root}/{entry}/name")
    if package := _PACKAGE.fullmatch(name):
        return ZoneDomain("package", package[1])
    if psys := _PSYS.fullmatch(name):
        return ZoneDomain("psys", psys[1] or "")
    if name in ("dram", "core", "uncore") and entry.count(":") == 2:
        parent = _PACKAGE.fullmatch(read_text(f"{root}/{entry.rpartition(':')[0]}/name"))
        return ZoneDomain(name, parent[1]) if parent else None
    return None


def _duplicate_paths(rapl_zones: list[Zone]) -> set[str]:
    """Paths of zones that show the same register as an earlier one of their socket."""
    dies = defaultdict(list)
    for zone in rapl_zones:
        if zone.domain.zone == "package":
            dies[zone.domain].append(zone)
    duplicates: set[str] = set()
    for first, *others in dies.values():
        for other in others:
            try:
                difference = abs(energy_joules(other) - energy_joules(first))
            except (OSError, ValueError):
                continue  # an unreadable zone is not counted
            if difference <= _DUPLICATE_JOULES:
                duplicates.add(other.path)
    return duplicates


def _read_cpu_vendor(cpuinfo: str) -> str:
    vendor = re.search(r"^vendor_id\s*:(.*)", read_text(cpuinfo), re.MULTILINE)
    return vendor[1].strip() if vendor else ""


def _read_all(path: str, pattern: str) -> Iterator[float]:
    for entry in list_directory(path):
        value = _read_micro_units(f"{path}/{entry}") if re.fullmatch(pattern, entry) else None
        if value is not None:
            yield value


def _read_micro_units(path: str) -> float | None:
    """Micro-units as units; None if there is no such number (the kernel returns ENODATA)."""
    text = read_text(path)
    return int(text) / 1e6 if text and text.isdecimal() else None
