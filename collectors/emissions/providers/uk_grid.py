"""Great Britain: the National Energy System Operator's Carbon Intensity API. No key.

It counts the combustion of fuel, imports and losses included, per half hour, without Northern
Ireland. Zone `GB` is the whole grid, `GB-13` the region with id 13 (forecast only). CC BY 4.0.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from collectors.emissions.providers.provider import (
    HOUR,
    MINUTE,
    EmissionFactor,
    FetchJson,
    ProviderAccess,
    ProviderEntry,
    newest,
    rows,
)

URL = "https://api.carbonintensity.org.uk"
CREDIT = "National Energy System Operator, Carbon Intensity API, CC BY 4.0"


def read(fetch_json: FetchJson, access: ProviderAccess, now: float) -> tuple[EmissionFactor, ...]:
    """The current half hour: measured if available, else forecast."""
    region = access.zone.partition("-")[2]
    path = f"/regional/regionid/{region}" if region else "/intensity"
    return (parse(fetch_json(access.url + path), access.zone, now),)


def parse(document: Any, zone: str, now: float) -> EmissionFactor:
    """`{"data": [{"from", "to", "intensity": {"forecast", "actual", "index"}}]}`.

    A region's answer has another such list inside the region.
    """
    half_hours = rows(document, "data", 0, "data") if "-" in zone else rows(document, "data")
    return newest("uk_grid", zone, "combustion", _values(half_hours), now)


def _values(half_hours: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, Any, bool]]:
    for half_hour in half_hours:
        intensity = half_hour.get("intensity")
        if isinstance(intensity, dict):
            yield intensity.get("actual"), half_hour.get("from"), False
            yield intensity.get("forecast"), half_hour.get("from"), True


PROVIDER = ProviderEntry(read, URL, 15 * MINUTE, 2 * HOUR, r"GB(-\d{1,2})?", CREDIT)
