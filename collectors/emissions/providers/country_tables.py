"""Yearly means by country, from tables in the package: no network, usable on every node."""

import csv
import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import NamedTuple

from collectors.emissions.providers.provider import EmissionFactor, parse_factor

CREDIT = {
    "owid": "Ember; Energy Institute - Statistical Review of World Energy; processed by Our World"
    " in Data; CC BY 4.0",
    "codecarbon": "CodeCarbon, MIT; figures: Ember and Our World in Data, CC BY 4.0",
}
WORLD = "world"
_ALIASES = {"UK": "GB", "EL": "GR", "WORLD": "ZZ"}  # codes used by people and the European Union


class CountryFactor(NamedTuple):
    """A country's value; `grams_per_kilowatt_hour` is None where the table has a gap."""

    zone: str  # ISO 3166-1 alpha-2, or `world`
    country: str
    grams_per_kilowatt_hour: float | None
    year: int


@functools.cache
def load_table(provider: str) -> Mapping[str, CountryFactor]:
    """The values by alpha-2 and by alpha-3 code."""
    factors: dict[str, CountryFactor] = {}
    source = resources.files("collectors.emissions.providers") / "data" / f"{provider}.csv"
    with source.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            zone = WORLD if line["alpha2"] == "ZZ" else line["alpha2"]
            factor = parse_factor(float(line["gco2e_per_kwh"]))
            row = CountryFactor(zone, line["country"], factor, int(line["year"]))
            factors[line["alpha2"]] = factors[line["alpha3"]] = row
    return factors


def country_observation(provider: str, country: str) -> EmissionFactor:
    """The value of a country, by either code; ValueError says what was expected.

    It applies to a whole year, so its age is counted from the year's end.
    """
    code = country.upper()
    row = load_table(provider).get(_ALIASES.get(code, code))
    if row is None or row.grams_per_kilowatt_hour is None:
        raise ValueError(
            f"{provider} has no figure for {country!r}: expected an ISO 3166 code, or "
            f"owid:{WORLD} for the world average"
        )
    ended = datetime(row.year + 1, 1, 1, tzinfo=UTC).timestamp()
    return EmissionFactor(provider, row.zone, "lifecycle", row.grams_per_kilowatt_hour, ended)
