"""Factors published by batchjob_stats_server, so that only one place queries the providers."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from collectors.emissions.providers import provider

PATH = "/api/v1/emission-factors"
CREDIT = "relayed by batchjob_stats_server"
SCOPES = ("lifecycle", "combustion", "marginal")


def read(
    fetch_json: provider.FetchJson, access: provider.ProviderAccess, now: float
) -> tuple[provider.EmissionFactor, ...]:
    token = access.secret()
    headers = [("Authorization", f"Bearer {token}")] if token else []
    return parse(fetch_json(access.url + PATH, headers), now)


def parse(document: Any, now: float) -> tuple[provider.EmissionFactor, ...]:
    """Parse what `factors_document()` returns; unusable rows are skipped."""
    observations = []
    for row in provider.rows(document, "factors"):
        factor = provider.parse_factor(row.get("grams_per_kilowatt_hour"))
        at = provider.parse_time(row.get("observed_at"), now)
        names = [row.get(name) for name in ("provider", "zone", "scope")]
        if factor is None or at is None or not all(isinstance(n, str) and n for n in names):
            continue
        if names[2] in SCOPES:
            name, zone, scope = map(str, names)
            estimated = row.get("estimated") is True
            observations.append(provider.EmissionFactor(name, zone, scope, factor, at, estimated))
    if not observations:
        raise provider.FactorError("no_value", "server: no current factor")
    return tuple(observations)


def factors_document(factors: Iterable[provider.EmissionFactor]) -> dict[str, Any]:
    return {"factors": [_row(each) for each in factors]}


def _row(factor: provider.EmissionFactor) -> dict[str, Any]:
    at = datetime.fromtimestamp(factor.observed_at, UTC)
    return factor._asdict() | {"observed_at": at.isoformat()}


PROVIDER = provider.ProviderEntry(read, "", 5 * provider.MINUTE, 6 * provider.HOUR, "", CREDIT)
