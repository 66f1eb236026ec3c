"""The table of providers, one row each, and yearly means by country from tables in the package."""

import csv
import functools
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources

from collectors.emissions.providers import electricity_maps, rte, stats_server, uk_grid, watttime
from collectors.emissions.providers.provider import EmissionFactor, parse_factor

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
    return TABLE_CREDIT.get(provider) or PROVIDERS.get(provider, SERVER).credit


def split_provider_zone(text: str) -> tuple[str, str]:
    """Split `rte:FR` into provider and zone; ValueError says what was expected."""
    provider, _, zone = text.partition(":")
    if provider in TABLES:
        country_factor(provider, zone)  # raises ValueError if the table lacks the country
    elif provider not in PROVIDERS:
        names = ", ".join((*TABLES, *PROVIDERS))
        raise ValueError(f"expected PROVIDER:ZONE with one of {names}, got {text!r}")
    elif not re.fullmatch(PROVIDERS[provider].zone, zone):
        raise ValueError(
            f"expected a zone of {provider} ({PROVIDERS[provider].zone}), got {zone!r}"
        )
    return provider, zone


TABLE_CREDIT = {
    "owid": "Ember; Energy Institute - Statistical Review of World Energy; processed by Our World"
    " in Data; CC BY 4.0",
    "codecarbon": "CodeCarbon, MIT; figures: Ember and Our World in Data, CC BY 4.0",
}
WORLD = "world"
_ALIASES = {"UK": "GB", "EL": "GR", "WORLD": "ZZ"}  # codes used by people and the European Union


@functools.cache
def load_table(provider: str) -> Mapping[str, EmissionFactor | None]:
    """The factors by alpha-2 and by alpha-3 code; None where the table has a gap.

    A factor applies to a whole year, so its age is counted from the year's end. Its zone is an
    ISO 3166-1 alpha-2 code, or `world`.
    """
    factors: dict[str, EmissionFactor | None] = {}
    source = resources.files("collectors.emissions.providers") / "data" / f"{provider}.csv"
    with source.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            zone = WORLD if line["alpha2"] == "ZZ" else line["alpha2"]
            grams = parse_factor(float(line["gco2e_per_kwh"]))
            ended = datetime(int(line["year"]) + 1, 1, 1, tzinfo=UTC).timestamp()
            factor = EmissionFactor(provider, zone, "lifecycle", grams, ended) if grams else None
            factors[line["alpha2"]] = factors[line["alpha3"]] = factor
    return factors


def country_factor(provider: str, country: str) -> EmissionFactor:
    """The factor of a country, by either code; ValueError says what was expected."""
    code = country.upper()
    factor = load_table(provider).get(_ALIASES.get(code, code))
    if factor is None:
        raise ValueError(
            f"{provider} has no figure for {country!r}: expected an ISO 3166 code, or "
            f"owid:{WORLD} for the world average"
        )
    return factor
