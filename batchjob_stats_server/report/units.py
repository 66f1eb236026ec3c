"""Formatting of quantities by unit, and rounding of amounts to request."""

import math
from collections.abc import Callable, Mapping

from batchjob.runtime import formatting

_GIB = 1 << 30


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


def memory_to_request_bytes(needed: float) -> int:
    """Memory to request: a fifth more than needed, rounded up to a common amount."""
    amount = needed * 1.2
    step = next(
        step
        for below, step in ((_GIB, 128 << 20), (16 * _GIB, _GIB), (64 * _GIB, 4 * _GIB),
                            (math.inf, 16 * _GIB))
        if amount <= below
    )  # fmt: skip
    return math.ceil(amount / step) * step


def time_to_request_seconds(needed: float) -> int:
    """Time to request: a quarter more than needed, rounded up, at least ten minutes."""
    amount = needed * 1.25
    step = 600 if amount <= 7200 else 1800 if amount <= 6 * 3600 else 3600
    return max(1, math.ceil(amount / step)) * step
