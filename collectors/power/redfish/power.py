"""Finds the node's power in a Redfish service, and reads it.

New services have it in EnvironmentMetrics, older ones in Power.PowerControl, some only beside that
(iLO 4), in the manufacturer's part (iRMC) or at their power supplies' inputs. Links are followed,
never constructed, since paths differ between vendors.
Source: DMTF DSP2046 (Redfish resource and schema guide): Chassis, EnvironmentMetrics, Power,
PowerSubsystem, PowerSupplyMetrics.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from collectors.power.meter import BmcError

ROOT = "/redfish/v1/"

# The values of the label `reason`. The first five are those of `batchjob.runtime.http_client`.
REASONS = (
    "deadline",
    "malformed",
    "tls",
    "too_large",
    "unreachable",
    "ambiguous",  # several computer systems, and none is configured
    "authentication",
    "implausible",  # far more watts than before, or than any node draws
    "no_reading",  # the service answers, but reports no power (now)
    "status",  # an unsuccessful HTTP status
)


Get = Callable[[str], dict[str, Any]]  # returns the resource at a path; raises BmcError

_FAILURES_BEFORE_NEW_SEARCH = 3
_MAX_PAGES = 32
# Parts of a node or rack.
_PART_TYPES = ("Component", "Module", "Card", "Zone", "Cartridge", "Drawer", "Shelf")
_ENCLOSURE_TYPES = ("Enclosure", "Rack", "RackGroup", "Row", "Pod")  # of several nodes
_NODE_NAMES = ("system power control", "server power control", "system input power")
_NOT_IN_USE = ("Absent", "Disabled", "UnavailableOffline", "StandbyOffline")

PowerLocation = tuple[str, Callable[[], float | None]]
"""The Id of a chassis, and the function that reads its power from the resource that has it.

It returns None if the value is null, zero or missing.
"""


@dataclass(eq=False)
class RedfishReader:
    """Reads one Redfish service; the location of the power values is looked up once."""

    get: Get
    close: Callable[[], None]
    """Ends the session."""
    chassis: Sequence[str] = ()
    """The ids that are configured."""
    system: str = ""
    """The id that is configured."""
    locations: tuple[PowerLocation, ...] = ()
    failures: int = 0

    def read(self) -> Mapping[str, float]:
        """Watts of all chassis; BmcError if one is missing, as the sum would be too low."""
        try:
            watts = self._read_chassis()
        except BmcError:
            self.failures += 1
            if self.failures >= _FAILURES_BEFORE_NEW_SEARCH:
                self.locations = ()
            raise
        self.failures = 0
        return watts

    def _read_chassis(self) -> Mapping[str, float]:
        get = self.get
        if not self.locations:
            self.locations = find_locations(get, self.chassis, self.system)
        missing = set(self.chassis) - {chassis for chassis, _ in self.locations}
        if missing or not self.locations:
            names = ", ".join(sorted(missing)) or "any chassis of the node"
            raise BmcError("no_reading", f"no power reported for {names}")
        watts_by_chassis = {}
        for chassis, read in self.locations:
            watts = read()
            if watts is None:
                raise BmcError("no_reading", f"chassis {chassis} reports no power")
            watts_by_chassis[chassis] = watts
        return watts_by_chassis


def find_locations(
    get: Get, chassis_ids: Sequence[str] = (), system: str = ""
) -> tuple[PowerLocation, ...]:
    """The locations of the node's power, best first; `chassis_ids`: those configured, if any.

    A chassis counts if it contains the node's computer system, but an enclosure of several nodes
    only if it alone does; if no chassis states its contents, all chassis that are not a part of
    another one count.
    """
    root = get(ROOT)
    system_path = _find_system(get, root, system, bool(chassis_ids))
    chassis = [get(path) for path in _member_paths(get, _link(root, "Chassis"))]
    if chassis_ids:
        selected = [each for each in chassis if each.get("Id") in chassis_ids]
    else:
        whole_chassis = [each for each in chassis if each.get("ChassisType") not in _PART_TYPES]
        with_system = [each for each in whole_chassis if system_path in _computer_systems(each)]
        selected = _without_enclosures(with_system) or [
            each for each in whole_chassis if not _computer_systems(each)
        ]
    locations = [_first_location(get, each, system_path) for each in selected]
    return tuple(location for location in locations if location is not None)


def _without_enclosures(chassis: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The node's own chassis, where the enclosure that contains it lists the system as well."""
    paths = {_service_path(each.get("@odata.id")) for each in chassis} - {""}
    containers = {
        _service_path(_field(_field(each.get("Links"), "ContainedBy"), "@odata.id"))
        for each in chassis
    }

    def rank(each: dict[str, Any]) -> tuple[bool, bool, int]:
        path = _service_path(each.get("@odata.id"))
        contents = _linked_paths(_field(each.get("Links"), "Contains"))
        contains_another = not (paths - {path}).isdisjoint(contents)
        is_container = contains_another or (path != "" and path in containers)
        is_enclosure = each.get("ChassisType") in _ENCLOSURE_TYPES
        return is_container, is_enclosure, len(_computer_systems(each))

    best = min(map(rank, chassis), default=None)
    return [each for each in chassis if rank(each) == best]


def _find_system(get: Get, root: dict[str, Any], system_id: str, chassis_named: bool) -> str:
    """The node's computer system; "" if there is none and the chassis are named."""
    link = _link(root, "Systems")
    try:
        paths = list(_member_paths(get, link)) if link else []
    except BmcError as error:
        if error.reason != "status" or system_id or not chassis_named:
            raise
        return ""
    if system_id:
        paths = [path for path in paths if path.rstrip("/").rsplit("/", 1)[-1] == system_id]
        if not paths:
            raise BmcError("ambiguous", f"no computer system {system_id!r}")
    if len(paths) > 1:
        names = ", ".join(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)
        raise BmcError(
            "ambiguous",
            f"several computer systems ({names}): set collector.redfish.system to one of them",
        )
    return paths[0] if paths else ""


def _first_location(get: Get, chassis: dict[str, Any], system: str) -> PowerLocation | None:
    """The first location with a value; some services link to resources that do not exist."""
    for read in _candidates(get, chassis, system):
        try:
            if read() is not None:
                return str(chassis.get("Id", "")), read
        except BmcError as error:
            if error.reason != "status":
                raise
    return None


def _candidates(
    get: Get, chassis: dict[str, Any], system: str
) -> Iterator[Callable[[], float | None]]:
    environment, power = _link(chassis, "EnvironmentMetrics"), _link(chassis, "Power")
    if environment:
        yield partial(read_environment, get, environment)
    if power:
        yield partial(read_control, get, power, system)
        yield partial(_read_manufacturer, get, power)
    subsystem = _link(chassis, "PowerSubsystem")
    if subsystem:
        supplies = tuple(_member_paths(get, _link(get(subsystem), "PowerSupplies")))
        if supplies:
            yield partial(_read_supplies, get, supplies)
    if power:
        yield partial(read_inputs, get, power)


def read_environment(get: Get, path: str) -> float | None:
    """Watts in EnvironmentMetrics."""
    return _parse_watts(_field(get(path).get("PowerWatts"), "Reading"))


def read_control(get: Get, path: str, system: str) -> float | None:
    """Watts of a computer system (a path) in PowerControl."""
    members = _objects(get(path).get("PowerControl"))
    selected = _select_control(members, system)
    return None if selected is None else _parse_watts(selected.get("PowerConsumedWatts"))


def _select_control(members: list[dict[str, Any]], system: str) -> dict[str, Any] | None:
    """Select the entry of the node: chassis, node and processors may be listed, and overlap."""
    related = [m for m in members if system and system in _linked_paths(m.get("RelatedItem"))]
    named = [m for m in members if str(m.get("Name", "")).lower() in _NODE_NAMES]
    return next(iter(related or named or members), None)


def _read_manufacturer(get: Get, path: str) -> float | None:
    """What iLO 4 has beside PowerControl, and Fujitsu's iRMC in its own part."""
    power = get(path)
    oem = power.get("Oem")
    parts = oem.values() if isinstance(oem, dict) else ()
    consumptions = [_field(part, "ChassisPowerConsumption") for part in parts]
    values = [_field(each, "CurrentPowerConsumptionW") for each in consumptions]
    watts = map(_parse_watts, (power.get("PowerConsumedWatts"), *values))
    return next((each for each in watts if each is not None), None)


def read_inputs(get: Get, path: str) -> float | None:
    """The sum of the inputs of the power supplies in Power."""
    supplies = _objects(get(path).get("PowerSupplies"))
    return _sum_inputs([(each, each.get("PowerInputWatts")) for each in supplies])


def _read_supplies(get: Get, paths: Sequence[str]) -> float | None:
    readings = []
    for path in paths:
        supply = get(path)
        metrics = _link(supply, "Metrics")
        value = get(metrics).get("InputPowerWatts") if metrics and not _is_unused(supply) else None
        readings.append((supply, _field(value, "Reading")))
    return _sum_inputs(readings)


def _sum_inputs(readings: list[tuple[dict[str, Any], Any]]) -> float | None:
    """The inputs of all supplies in use; if one has no value, the sum is unknown."""
    watts = [_parse_watts(value, 0.0) for supply, value in readings if not _is_unused(supply)]
    total = sum(each for each in watts if each is not None)
    return total if total > 0 and None not in watts else None


def _is_unused(supply: dict[str, Any]) -> bool:
    return _field(supply.get("Status"), "State") in _NOT_IN_USE


def _parse_watts(value: Any, minimum: float = 0.001) -> float | None:
    """Watts as a number or as text (some firmware); None below the minimum or if malformed."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        watts = float(value)
    except (ValueError, OverflowError):
        return None
    return watts if math.isfinite(watts) and watts >= minimum else None


def _member_paths(get: Get, path: str) -> Iterator[str]:
    for _ in range(_MAX_PAGES):
        if not path:
            return
        page = get(path)
        yield from _linked_paths(page.get("Members"))
        path = _service_path(page.get("Members@odata.nextLink"))


def _computer_systems(chassis: dict[str, Any]) -> list[str]:
    return _linked_paths(_field(chassis.get("Links"), "ComputerSystems"))


def _linked_paths(items: Any) -> list[str]:
    paths = (_service_path(item.get("@odata.id")) for item in _objects(items))
    return [path for path in paths if path]


def _link(document: dict[str, Any], name: str) -> str:
    return _service_path(_field(document.get(name), "@odata.id"))


def _service_path(path: Any) -> str:
    """The path if it is on this service, else "": other hosts must not receive the token."""
    return path if isinstance(path, str) and path.startswith("/redfish/") else ""


def _field(document: Any, name: str) -> Any:
    return document.get(name) if isinstance(document, dict) else None


def _objects(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
