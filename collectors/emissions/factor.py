"""Emission factors, and how the energy collector obtains the current ones."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class EmissionFactor(NamedTuple):
    """Grams of CO2 (CO2 equivalent for a life-cycle scope) per kilowatt-hour used."""

    provider: str
    zone: str
    scope: str  # lifecycle, combustion or marginal; different scopes cannot be compared
    grams_per_kilowatt_hour: float
    age_seconds: float  # since the time to which the factor applies


@runtime_checkable
class CurrentFactors(Protocol):
    """The part of the emissions collector that the energy collector needs."""

    def current(self) -> Sequence[EmissionFactor]:
        """The factors valid now, at most one per provider. Thread-safe; never waits."""
