"""Electricity Maps, API v3: most grids of the world, with imports traced. Needs a token.

Zones are its own (`FR`, `DK-DK1`, `US-CAL-CISO`). The free token is for one zone and not for
commercial use; see the provider's terms before passing its values on.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from batchjob.runtime.settings import option
from batchjob.secret_files import secret_file
from collectors.emissions.providers import provider

URL = "https://api.electricitymaps.com"
CREDIT = "Electricity Maps, under its own terms"
_SCOPES = {"lifecycle": "lifecycle", "direct": "combustion"}


@dataclass(frozen=True)
class ElectricityMapsOptions:
    electricity_maps_token_file: str = option(
        "", "File with the API token for Electricity Maps.", parse=secret_file
    )


def read(
    fetch_json: provider.FetchJson, access: provider.ProviderAccess, now: float
) -> tuple[provider.EmissionFactor, ...]:
    query = urlencode({"zone": access.zone, "emissionFactorType": "lifecycle"})
    url = f"{access.url}/v3/carbon-intensity/latest?{query}"
    return (parse(fetch_json(url, [("auth-token", access.secret())]), access.zone, now),)


def parse(document: Any, zone: str, now: float) -> provider.EmissionFactor:
    """`{"zone", "carbonIntensity", "datetime", "emissionFactorType", "isEstimated", ...}`."""
    if not isinstance(document, dict) or document.get("zone") != zone:
        raise provider.FactorError(
            "malformed", f"electricity_maps: the answer is not about zone {zone}"
        )
    scope = _SCOPES.get(str(document.get("emissionFactorType", "lifecycle")))
    if scope is None:
        raise provider.FactorError("malformed", "electricity_maps: unknown emissionFactorType")
    value, at = document.get("carbonIntensity"), document.get("datetime")
    row = (value, at, document.get("isEstimated"))
    return provider.newest("electricity_maps", zone, scope, [row], now)


PROVIDER = provider.ProviderEntry(
    read,
    URL,
    30 * provider.MINUTE,
    6 * provider.HOUR,
    r"[A-Z]{2}(-[A-Z0-9]+){0,3}",
    CREDIT,
    credential_option="electricity_maps_token_file",
)
