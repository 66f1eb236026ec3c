"""The powercap tree in sysfs: its zones, and what each of them counts.

Source: Linux Documentation/power/powercap/powercap.rst, drivers/powercap/intel_rapl_common.c. The
driver also serves AMD and Hygon, under the name intel-rapl.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

# Ids are hexadecimal (powercap_sys.c prints "%x") and do not identify the socket; `name` does.
_ZONE = re.compile(r"intel-rapl(-mmio)?:[0-9a-f]+(?::[0-9a-f]+)?")
_PACKAGE = re.compile(r"package-(\d+)(?:-die-\d+)?")
_PSYS = re.compile(r"psys(?:-(\d+))?")
_LIMIT = re.compile(r"constraint_\d+_power_limit_uw")
_AMD = frozenset({"AuthenticAMD", "HygonGenuine"})
# Two reads of the same register, microseconds apart, differ by less than this.
_MIRROR_JOULES = 1.0


class ZoneDomain(NamedTuple):
    """What a zone counts: package, dram, core, uncore or psys, and the socket if it has one."""

    zone: str
    package: str


class Zone(NamedTuple):
    """A powercap directory."""

    path: str
    place: ZoneDomain
    mmio: bool  # accessed by memory-mapped I/O: the same register as the package's
    range_joules: float | None  # the counter wraps at this value; None: unknown
    max_watts: float | None  # highest limit allowed by the manufacturer; None: unknown


class Limit(NamedTuple):
    """A constraint of a zone."""

    place: ZoneDomain
    constraint: str
    watts: float


def root_of(sysfs: str) -> str:
    """The flat directory in which all zones and subzones appear."""
    return f"{sysfs}/class/powercap"


def zones(root: str) -> Iterator[Zone]:
    """All RAPL zones with a known domain, in the order of their directories."""
    for entry in _listed(root):
        match = _ZONE.fullmatch(entry)
        place = _place(root, entry) if match else None
        if match and place:
            path = f"{root}/{entry}"
            yield Zone(
                path,
                place,
                bool(match[1]),
                _scaled(f"{path}/max_energy_range_uj"),
                max(_all(path, r"constraint_\d+_max_power_uw"), default=None),
            )


def masked(root: str) -> bool:
    """Whether zones are listed but none is accessible, as container engines arrange it."""
    listed = [entry for entry in _listed(root) if _ZONE.fullmatch(entry)]
    return bool(listed) and not any(_text(f"{root}/{entry}/name") for entry in listed)


def to_count(root: str, cpuinfo: str) -> tuple[Zone, ...]:
    """The zones whose energy is not included in another one.

    Left out: mmio if the package exists without it; on AMD `core`, which is one core of dozens, and
    dies that repeat their socket's counter (Linux before 6.12 makes a zone per die).
    """
    found = list(zones(root))
    native = {zone.place for zone in found if not zone.mmio}
    found = [zone for zone in found if not (zone.mmio and zone.place in native)]
    if _vendor(cpuinfo) in _AMD:
        found = [zone for zone in found if zone.place.zone != "core"]
        mirrors = _mirrors(found)
        found = [zone for zone in found if zone.path not in mirrors]
    return tuple(found)


def limits(root: str) -> Iterator[Limit]:
    """The power limits in force; 0 stands for none and is left out."""
    for zone in zones(root):
        place = zone.place._replace(zone="mmio") if zone.mmio else zone.place
        for entry in filter(_LIMIT.fullmatch, _listed(zone.path)):
            name = _text(f"{zone.path}/{entry.replace('power_limit_uw', 'name')}")
            watts = _scaled(f"{zone.path}/{entry}")
            if name and watts:
                yield Limit(place, name, watts)


def energy_joules(zone: Zone) -> float:
    """The zone's counter. Raises OSError, and ValueError if it is not a number."""
    with open(f"{zone.path}/energy_uj", encoding="ascii") as file:
        return int(file.read()) / 1e6


def _place(root: str, entry: str) -> ZoneDomain | None:
    name = _text(f"{root}/{entry}/name") or ""
    if package := _PACKAGE.fullmatch(name):
        return ZoneDomain("package", package[1])
    if psys := _PSYS.fullmatch(name):
        return ZoneDomain("psys", psys[1] or "")
    if name in ("dram", "core", "uncore") and entry.count(":") == 2:
        parent = _PACKAGE.fullmatch(_text(f"{root}/{entry.rpartition(':')[0]}/name") or "")
        return ZoneDomain(name, parent[1]) if parent else None
    return None


def _mirrors(found: list[Zone]) -> set[str]:
    """Paths of zones that show the same register as an earlier one of their socket."""
    dies = defaultdict(list)
    for zone in found:
        if zone.place.zone == "package":
            dies[zone.place].append(zone)
    repeated: set[str] = set()
    for first, *others in dies.values():
        for other in others:
            try:
                apart = abs(energy_joules(other) - energy_joules(first))
            except (OSError, ValueError):
                continue  # an unreadable zone is not counted
            if apart <= _MIRROR_JOULES:
                repeated.add(other.path)
    return repeated


def _vendor(cpuinfo: str) -> str:
    try:
        with open(cpuinfo, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("vendor_id"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _all(path: str, pattern: str) -> Iterator[float]:
    for entry in _listed(path):
        value = _scaled(f"{path}/{entry}") if re.fullmatch(pattern, entry) else None
        if value is not None:
            yield value


def _scaled(path: str) -> float | None:
    """Micro-units as units; None if there is no such number (the kernel returns ENODATA)."""
    text = _text(path)
    return int(text) / 1e6 if text and text.isdecimal() else None


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
