"""France: RTE's eCO2mix, from the ODRE portal (dataset eco2mix-national-tr, Explore API v2.1).

`taux_co2` counts the combustion of fuel in French power stations: no imports, no life cycle. There
is a row for each quarter of an hour, an hour or two late; those of the rest of the day are null,
and zeros occur. 50 000 calls per user and month.
"""

from typing import Any
from urllib.parse import urlencode

from collectors.emissions.providers import provider

URL = "https://odre.opendatasoft.com"
CREDIT = "RTE, eCO2mix, by Open Data Réseaux Énergies (ODRÉ)"
_PATH = "/api/explore/v2.1/catalog/datasets/eco2mix-national-tr/records?"
_QUERY = {
    "select": "taux_co2,date_heure",
    "where": "taux_co2 is not null",
    "order_by": "date_heure desc",
    "limit": "20",
}


def read(
    fetch_json: provider.FetchJson, access: provider.ProviderAccess, now: float
) -> tuple[provider.EmissionFactor, ...]:
    """The newest quarter of an hour that has a value."""
    return (parse(fetch_json(access.url + _PATH + urlencode(_QUERY)), now),)


def parse(document: Any, now: float) -> provider.EmissionFactor:
    """`{"results": [{"taux_co2": 23, "date_heure": "2024-05-02T14:15:00+02:00"}, ...]}`."""
    found = provider.rows(document, "results")
    values = [(row.get("taux_co2"), row.get("date_heure"), False) for row in found]
    return provider.newest("rte", "FR", "combustion", values, now)


PROVIDER = provider.ProviderEntry(read, URL, 15 * provider.MINUTE, 6 * provider.HOUR, "FR", CREDIT)
