"""The table of providers, one row each."""

import re
from collections.abc import Callable
from typing import NamedTuple

from collectors.emissions.providers import (
    country_tables,
    electricity_maps,
    rte,
    stats_server,
    uk_grid,
    watttime,
)
from collectors.emissions.providers.provider import FetchJson, Observation, ProviderAccess

_MINUTE, _HOUR = 60.0, 3600.0


class ProviderEntry(NamedTuple):
    """A provider that is queried over the network."""

    read: Callable[[FetchJson, ProviderAccess, float], tuple[Observation, ...]]
    url: str
    interval: float  # seconds between two requests
    longest_age: float  # older values are not used
    zone: str  # pattern of its zone names
    credit: str


TABLES = ("owid", "codecarbon")
PROVIDERS = {
    "rte": ProviderEntry(rte.read, rte.URL, 15 * _MINUTE, 6 * _HOUR, "FR", rte.CREDIT),
    "electricity_maps": ProviderEntry(
        electricity_maps.read,
        electricity_maps.URL,
        30 * _MINUTE,
        6 * _HOUR,
        r"[A-Z]{2}(-[A-Z0-9]+){0,3}",
        electricity_maps.CREDIT,
    ),
    "uk_grid": ProviderEntry(
        uk_grid.read, uk_grid.URL, 15 * _MINUTE, 2 * _HOUR, r"GB(-\d{1,2})?", uk_grid.CREDIT
    ),
    "watttime": ProviderEntry(
        watttime.read, watttime.URL, 5 * _MINUTE, 1 * _HOUR, r"[A-Z0-9_]+", watttime.CREDIT
    ),
}
SERVER = ProviderEntry(stats_server.read, "", 5 * _MINUTE, 6 * _HOUR, "", stats_server.CREDIT)


def longest_age(provider: str) -> float:
    """Seconds for which a provider's value is valid; those of tables do not expire."""
    if provider in TABLES:
        return float("inf")
    return PROVIDERS.get(provider, SERVER).longest_age


def credit(provider: str) -> str:
    """The attribution that a provider requires beside its values."""
    return country_tables.CREDIT.get(provider) or PROVIDERS.get(provider, SERVER).credit


def split_provider_zone(text: str) -> tuple[str, str]:
    """Split `rte:FR` into provider and zone; ValueError says what was expected."""
    provider, _, zone = text.partition(":")
    if provider in TABLES:
        country_tables.country_observation(
            provider, zone
        )  # raises ValueError if the table lacks the country
    elif provider not in PROVIDERS:
        names = ", ".join((*TABLES, *PROVIDERS))
        raise ValueError(f"expected PROVIDER:ZONE with one of {names}, got {text!r}")
    elif not re.fullmatch(PROVIDERS[provider].zone, zone):
        raise ValueError(
            f"expected a zone of {provider} ({PROVIDERS[provider].zone}), got {zone!r}"
        )
    return provider, zone
