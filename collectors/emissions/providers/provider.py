"""Emission factors, and what providers share: their contract, and the checks of their values."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

_MAX_GRAMS_PER_KWH = 2000.0  # g/kWh; a grid with only old lignite plants emits about 1300
_MAX_CLOCK_SKEW_SECONDS = 900.0  # a time may be this far in the future

MINUTE, HOUR = 60.0, 3600.0

# Why a provider gave no factor: the values of the label `reason`. The first five are those of
# `batchjob.runtime.http_client`.
REASONS = (
    "deadline",
    "malformed",
    "tls",
    "too_large",
    "unreachable",
    "authentication",
    "late",  # its newest value is older than the provider's limit
    "no_value",  # only nulls, zeros and times in the future
    "rate_limited",
    "status",  # any other unsuccessful HTTP status
)


class FactorError(Exception):
    """No factor, for one of REASONS. `seconds`: do not query the provider for this long."""

    def __init__(self, reason: str, message: str, seconds: float = 0.0) -> None:
        assert reason in REASONS
        super().__init__(message)
        self.reason = reason
        self.seconds = seconds


class EmissionFactor(NamedTuple):
    """Grams of CO2 (CO2 equivalent for a life-cycle scope) per kilowatt-hour used."""

    provider: str
    zone: str
    scope: str  # lifecycle, combustion or marginal; different scopes cannot be compared
    grams_per_kilowatt_hour: float
    observed_at: float  # epoch seconds of the time to which it applies
    estimated: bool = False  # a forecast, or filled in by the provider

    def age_seconds(self, now: float) -> float:
        """Seconds since the time to which it applies; `now` is in epoch seconds."""
        return max(0.0, now - self.observed_at)


FetchJson = Callable[..., Any]
"""Fetches the JSON document at a URL, with header fields or without; raises FactorError."""


class ProviderAccess(NamedTuple):
    """Address, zone and credentials with which a provider is queried."""

    url: str
    zone: str
    user: str = ""
    secret: Callable[[], str] = str  # reads the token or password; raises FactorError


class ProviderEntry(NamedTuple):
    """A provider that is queried over the network."""

    read: Callable[[FetchJson, ProviderAccess, float], tuple[EmissionFactor, ...]]
    url: str
    interval: float  # seconds between two requests
    longest_age: float  # seconds; older values are not used
    zone: str  # pattern of its zone names
    credit: str
    user_option: str = ""  # field of its options with the user's name, if it has accounts
    credential_option: str = ""  # field of its options with the file of its token or password


def parse_factor(value: Any, scale: float = 1.0) -> float | None:
    """A factor from a number in other units; None if it is null, zero, text or implausible."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value * scale if 0 < value <= _MAX_GRAMS_PER_KWH / scale else None


def parse_time(text: Any, now: float) -> float | None:
    """Epoch seconds of an ISO 8601 time with its offset; None if it is in the future.

    A time without an offset is refused: local time is ambiguous one night a year.
    """
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    seconds = at.astimezone(UTC).timestamp()
    return seconds if seconds <= now + _MAX_CLOCK_SKEW_SECONDS else None


def newest(
    provider: str,
    zone: str,
    scope: str,
    rows: Iterable[tuple[Any, Any, Any]],
    now: float,
    scale: float = 1.0,
) -> EmissionFactor:
    """The newest usable factor of rows with a value, a time, and whether it is an estimate.

    A measured one comes before an estimate of the same time. FactorError if none is usable.
    """
    factors = [
        EmissionFactor(provider, zone, scope, grams, at, estimated is True)
        for value, text, estimated in rows
        if (grams := parse_factor(value, scale)) is not None
        and (at := parse_time(text, now)) is not None
    ]
    if not factors:
        raise FactorError("no_value", f"{provider}: no usable value in the answer")
    return max(factors, key=lambda each: (each.observed_at, not each.estimated))


def rows(document: Any, *path: str | int) -> list[dict[str, Any]]:
    """The list of objects at a path in a document; raises FactorError if there is none."""
    value = document
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            raise FactorError("malformed", f"no {step!r} in the answer") from error
    if not isinstance(value, list):
        raise FactorError("malformed", f"expected a list at {path[-1]!r}")
    return [row for row in value if isinstance(row, dict)]
