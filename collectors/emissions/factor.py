"""What an emission factor is, and how the energy collector gets those of the moment."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class EmissionFactor(NamedTuple):
    """Grams of CO2 (equivalent, where the scope is the life cycle) for a kilowatt-hour used."""

    provider: str
    zone: str
    scope: str  # lifecycle, combustion, marginal: figures of two scopes do not compare
    grams_per_kilowatt_hour: float
    age: float  # seconds since the moment it is about


@runtime_checkable
class CurrentFactors(Protocol):
    """The emissions collector, as far as the energy collector needs it."""

    def current(self) -> Sequence[EmissionFactor]:
        """The factors that hold now, at most one per provider. Thread-safe; waits for nothing."""
