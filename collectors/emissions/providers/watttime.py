"""WattTime, API v3: marginal emissions, those of one additional kilowatt-hour.

They cannot be compared with averages and are never added to them. An account is needed; free
accounts have values for CAISO_NORTH alone. The data are subject to the provider's own terms.
"""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from batchjob.runtime.settings import option
from batchjob.secret_files import secret_file
from collectors.emissions.providers import provider

URL = "https://api.watttime.org"
CREDIT = "WattTime, under its own terms"
_GRAMS_PER_UNIT = 453.59237 / 1000  # of a pound per MWh
_UNITS = "lbs_co2_per_mwh"
_LOOK_BACK = timedelta(hours=2)


@dataclass(frozen=True)
class WattTimeOptions:
    watttime_user: str = option("", "User name for WattTime.")
    watttime_password_file: str = option(
        "", "File with the password for WattTime.", parse=secret_file
    )


def read(
    fetch_json: provider.FetchJson, access: provider.ProviderAccess, now: float
) -> tuple[provider.EmissionFactor, ...]:
    """The newest five minutes of the region. Each reading logs in, since tokens expire soon."""
    pair = base64.b64encode(f"{access.user}:{access.secret()}".encode()).decode()
    login = fetch_json(f"{access.url}/login", [("Authorization", f"Basic {pair}")])
    token = login.get("token") if isinstance(login, dict) else None
    if not isinstance(token, str):
        raise provider.FactorError("malformed", "watttime: no token in the answer to the login")
    until = datetime.fromtimestamp(now, UTC)
    query = {
        "region": access.zone,
        "start": (until - _LOOK_BACK).isoformat(timespec="seconds"),
        "end": until.isoformat(timespec="seconds"),
        "signal_type": "co2_moer",
    }
    url = f"{access.url}/v3/historical?{urlencode(query)}"
    return (parse(fetch_json(url, [("Authorization", f"Bearer {token}")]), access.zone, now),)


def parse(document: Any, zone: str, now: float) -> provider.EmissionFactor:
    """`{"data": [{"point_time", "value"}], "meta": {"region", "units", ...}}`."""
    values = [
        (row.get("value"), row.get("point_time"), False) for row in provider.rows(document, "data")
    ]
    meta = document.get("meta")
    if not isinstance(meta, dict) or (meta.get("units"), meta.get("region")) != (_UNITS, zone):
        raise provider.FactorError("malformed", f"watttime: expected {_UNITS} of {zone}")
    return provider.newest("watttime", zone, "marginal", values, now, _GRAMS_PER_UNIT)


PROVIDER = provider.ProviderEntry(
    read,
    URL,
    5 * provider.MINUTE,
    1 * provider.HOUR,
    r"[A-Z0-9_]+",
    CREDIT,
    user_option="watttime_user",
    credential_option="watttime_password_file",
)
