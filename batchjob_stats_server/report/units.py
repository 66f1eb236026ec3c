"""Numbers as people read them, and sizes worth asking for."""

import math
from collections.abc import Callable, Mapping

_GIB = 1 << 30


def size(number: float) -> str:
    """`3.1 GiB`."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", _GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(number) >= factor:
            return f"{_short(number / factor)} {unit}"
    return f"{number:.0f} B"


def duration(number: float) -> str:
    """`h:mm:ss`; hours go beyond 24."""
    whole = round(number)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def share(number: float) -> str:
    """`42 %`."""
    percent = number * 100
    return f"{percent:.1f} %" if 0 < percent < 10 else f"{percent:.0f} %"


def energy(number: float) -> str:
    """`1.25 kWh`, or Wh."""
    hours = number / 3600
    return f"{_short(hours / 1000)} kWh" if hours >= 1000 else f"{_short(hours)} Wh"


def emissions(number: float) -> str:
    """`120 g CO2e`, or kg."""
    return f"{_short(number / 1000)} kg CO2e" if number >= 1000 else f"{_short(number)} g CO2e"


def count(number: float) -> str:
    """`12`, `1.5`."""
    return _short(number)


def _short(number: float) -> str:
    """Three digits that matter, and no zeros behind the point."""
    text = f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"
    return text if "e" not in text else f"{number:.4f}"


WRITTEN: Mapping[str, Callable[[float], str]] = {
    "bytes": size,
    "seconds": duration,
    "ratio": share,
    "joules": energy,
    "grams": emissions,
    "count": count,
}


def worth_asking_bytes(need: float) -> int:
    """Memory to ask for: a fifth more than needed, rounded up to what people write."""
    wanted = need * 1.2
    step = next(
        step
        for below, step in ((_GIB, 128 << 20), (16 * _GIB, _GIB), (64 * _GIB, 4 * _GIB),
                            (math.inf, 16 * _GIB))
        if wanted <= below
    )  # fmt: skip
    return math.ceil(wanted / step) * step


def worth_asking_seconds(need: float) -> int:
    """Time to ask for: a quarter more than needed, rounded up; ten minutes at least."""
    wanted = need * 1.25
    step = 600 if wanted <= 7200 else 1800 if wanted <= 6 * 3600 else 3600
    return max(1, math.ceil(wanted / step)) * step
