"""The table of providers, one row each."""

import re

from collectors.emissions.providers import (
    country_tables,
    electricity_maps,
    rte,
    stats_server,
    uk_grid,
    watttime,
)

TABLES = ("owid", "codecarbon")
PROVIDERS = {
    "rte": rte.PROVIDER,
    "electricity_maps": electricity_maps.PROVIDER,
    "uk_grid": uk_grid.PROVIDER,
    "watttime": watttime.PROVIDER,
}
SERVER = stats_server.PROVIDER


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
        country_tables.country_factor(
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
