"""Numbers for people, and amounts to request."""

import math
from collections.abc import Callable, Mapping

from batchjob.runtime import formatting

_GIB = 1 << 30


def emissions(grams: float) -> str:
    """`120 g CO2e`, or kg."""
    return f"{formatting.mass(grams)} CO2e"


WRITTEN: Mapping[str, Callable[[float], str]] = {
    "bytes": formatting.size,
    "seconds": formatting.clock,
    "ratio": formatting.share,
    "joules": formatting.energy,
    "grams": emissions,
    "count": formatting.digits,
}


def worth_asking_bytes(need: float) -> int:
    """Memory to request: a fifth more than needed, rounded up to a common amount."""
    wanted = need * 1.2
    step = next(
        step
        for below, step in ((_GIB, 128 << 20), (16 * _GIB, _GIB), (64 * _GIB, 4 * _GIB),
                            (math.inf, 16 * _GIB))
        if wanted <= below
    )  # fmt: skip
    return math.ceil(wanted / step) * step


def worth_asking_seconds(need: float) -> int:
    """Time to request: a quarter more than needed, rounded up, at least ten minutes."""
    wanted = need * 1.25
    step = 600 if wanted <= 7200 else 1800 if wanted <= 6 * 3600 else 3600
    return max(1, math.ceil(wanted / step)) * step
