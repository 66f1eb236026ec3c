"""Finds the node's power in a Redfish service, and reads it.

New services have it in EnvironmentMetrics, older ones in Power.PowerControl, some only at their
power supplies' inputs. Links are followed, never constructed, since paths differ between vendors.
Source: DMTF DSP2046 (Redfish resource and schema guide): Chassis, EnvironmentMetrics, Power,
PowerSubsystem, PowerSupplyMetrics.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from collectors.power.redfish.error import RedfishError

Get = Callable[[str], dict[str, Any]]  # returns the resource at a path; raises RedfishError

ROOT = "/redfish/v1/"
_MOST_PAGES = 32
_PARTS = {
    "Component",
    "Module",
    "Card",
    "Zone",
    "Cartridge",
    "Drawer",
    "Shelf",
}  # parts of a node or rack
_NODE_NAMES = ("system power control", "server power control", "system input power")
_NOT_IN_USE = {"Absent", "Disabled", "UnavailableOffline", "StandbyOffline"}


class PowerLocation(NamedTuple):
    """The resource with the power of one chassis."""

    chassis: str  # its Id
    kind: str  # a key of _READ
    paths: tuple[str, ...]
    system: str  # path of the computer system


def find(get: Get, wanted: Sequence[str] = (), system: str = "") -> tuple[PowerLocation, ...]:
    """The locations of the node's power, best first; `wanted`: chassis, if configured.

    A chassis counts if it contains the node's computer system; if no chassis states its contents,
    all that are not mere parts count.
    """
    root = get(ROOT)
    system_path = _system(get, root, system, bool(wanted))
    chassis = [get(path) for path in _members(get, _link(root, "Chassis"))]
    if wanted:
        chosen = [each for each in chassis if each.get("Id") in wanted]
    else:
        whole = [each for each in chassis if each.get("ChassisType") not in _PARTS]
        holding = [each for each in whole if system_path in _held(each)]
        chosen = holding or [each for each in whole if not _held(each)]
    places = [_place(get, each, system_path) for each in chosen]
    return tuple(place for place in places if place is not None)


def read(get: Get, place: PowerLocation) -> float | None:
    """Watts of one chassis now; None if the value is null, zero or missing."""
    return _READ[place.kind](get, place)


def _system(get: Get, root: dict[str, Any], wanted: str, chassis_named: bool) -> str:
    """The node's computer system; "" if there is none and the chassis are named."""
    link = _link(root, "Systems")
    try:
        paths = list(_members(get, link)) if link else []
    except RedfishError as error:
        if error.reason != "status" or wanted or not chassis_named:
            raise
        return ""
    if wanted:
        paths = [path for path in paths if path.rstrip("/").rsplit("/", 1)[-1] == wanted]
        if not paths:
            raise RedfishError("ambiguous", f"no computer system {wanted!r}")
    if len(paths) > 1:
        names = ", ".join(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)
        raise RedfishError(
            "ambiguous",
            f"several computer systems ({names}): set collector.redfish.system to one of them",
        )
    return paths[0] if paths else ""


def _place(get: Get, chassis: dict[str, Any], system: str) -> PowerLocation | None:
    """The first location with a value; some services link to resources they do not have."""
    name = str(chassis.get("Id", ""))
    for kind, paths in _ways(get, chassis):
        place = PowerLocation(name, kind, paths, system)
        try:
            if read(get, place) is not None:
                return place
        except RedfishError as error:
            if error.reason != "status":
                raise
    return None


def _ways(get: Get, chassis: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    environment, power = _link(chassis, "EnvironmentMetrics"), _link(chassis, "Power")
    if environment:
        yield "environment", (environment,)
    if power:
        yield "control", (power,)
    subsystem = _link(chassis, "PowerSubsystem")
    if subsystem:
        supplies = tuple(_members(get, _link(get(subsystem), "PowerSupplies")))
        if supplies:
            yield "supplies", supplies
    if power:
        yield "inputs", (power,)


def _environment(get: Get, place: PowerLocation) -> float | None:
    return _watts(_of(get(place.paths[0]).get("PowerWatts"), "Reading"))


def _control(get: Get, place: PowerLocation) -> float | None:
    members = _list(get(place.paths[0]).get("PowerControl"))
    chosen = _for_system(members, place.system)
    return None if chosen is None else _watts(chosen.get("PowerConsumedWatts"))


def _for_system(members: list[dict[str, Any]], system: str) -> dict[str, Any] | None:
    """The right one of several entries: chassis, node and processors may be listed, and overlap."""
    related = [m for m in members if system and system in _ids(m.get("RelatedItem"))]
    known = [m for m in members if str(m.get("Name", "")).lower() in _NODE_NAMES]
    return next(iter(related or known or members), None)


def _inputs(get: Get, place: PowerLocation) -> float | None:
    supplies = _list(get(place.paths[0]).get("PowerSupplies"))
    return _sum([(each, each.get("PowerInputWatts")) for each in supplies])


def _supplies(get: Get, place: PowerLocation) -> float | None:
    readings = []
    for path in place.paths:
        supply = get(path)
        metrics = _link(supply, "Metrics")
        shown = get(metrics).get("InputPowerWatts") if metrics and not _unused(supply) else None
        readings.append((supply, _of(shown, "Reading")))
    return _sum(readings)


def _sum(readings: list[tuple[dict[str, Any], Any]]) -> float | None:
    """The inputs of all supplies in use; if one has no value, the sum is unknown."""
    watts = [_watts(shown, 0.0) for supply, shown in readings if not _unused(supply)]
    total = sum(each for each in watts if each is not None)
    return total if total > 0 and None not in watts else None


_READ: dict[str, Callable[[Get, PowerLocation], float | None]] = {
    "environment": _environment,
    "control": _control,
    "supplies": _supplies,
    "inputs": _inputs,
}


def _unused(supply: dict[str, Any]) -> bool:
    return _of(supply.get("Status"), "State") in _NOT_IN_USE


def _watts(shown: Any, least: float = 0.001) -> float | None:
    """A number, or a number as text, as some firmware writes it. A running node never draws 0 W."""
    if isinstance(shown, bool) or not isinstance(shown, int | float | str):
        return None
    try:
        watts = float(shown)
    except (ValueError, OverflowError):
        return None
    return watts if math.isfinite(watts) and watts >= least else None


def _members(get: Get, path: str) -> Iterator[str]:
    """Paths of a collection's members, over all its pages."""
    for _ in range(_MOST_PAGES):
        if not path:
            return
        page = get(path)
        yield from _ids(page.get("Members"))
        path = _checked(page.get("Members@odata.nextLink"))


def _held(chassis: dict[str, Any]) -> list[str]:
    return _ids(_of(chassis.get("Links"), "ComputerSystems"))


def _ids(items: Any) -> list[str]:
    paths = (_checked(item.get("@odata.id")) for item in _list(items))
    return [path for path in paths if path]


def _link(document: dict[str, Any], name: str) -> str:
    return _checked(_of(document.get(name), "@odata.id"))


def _checked(path: Any) -> str:
    """A path of this service; a link to another host would send the token there."""
    return path if isinstance(path, str) and path.startswith("/redfish/") else ""


def _of(document: Any, name: str) -> Any:
    return document.get(name) if isinstance(document, dict) else None


def _list(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
