"""Formatting of quantities by unit."""

from collections.abc import Callable, Mapping

from batchjob.runtime import formatting


def format_emissions(grams: float) -> str:
    """`120 g CO2e`, or kg."""
    return f"{formatting.mass(grams)} CO2e"


FORMATTERS: Mapping[str, Callable[[float], str]] = {
    "bytes": formatting.size,
    "seconds": formatting.format_clock,
    "ratio": formatting.share,
    "joules": formatting.energy,
    "grams": format_emissions,
    "count": formatting.digits,
}
