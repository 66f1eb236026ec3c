"""Numbers and times as people read them; what is not known is a dash that says why."""

import math
from collections.abc import Callable
from datetime import UTC, datetime

from markupsafe import Markup

_THIN = "\u202f"  # narrow no-break space: between thousands, and before a unit
_ABSENT = "not known"
_DAY = 86400


def absent(reason: str = _ABSENT) -> Markup:
    """A dash; the reason is its tooltip, and what a screen reader says."""
    return Markup(
        '<span class="absent" title="{0}"><span aria-hidden="true">\u2013</span>'
        '<span class="visually-hidden">{0}</span></span>'
    ).format(reason)


def number(value: float | None) -> str:
    """`12 345`; three digits of what is small."""
    if value is None:
        return ""
    if value and abs(value) < 100 and value != int(value):
        return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")
    return f"{value:,.0f}".replace(",", _THIN)


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    power = 0
    while abs(value) >= step * 0.9995 and power < len(units) - 1:
        value /= step
        power += 1
    digits = 0 if abs(value) >= 100 or (not power and value == int(value)) else 1
    digits = 2 if digits and abs(value) < 10 else digits
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text}{_THIN}{units[power]}"


def size(value: float) -> str:
    """Bytes, by 1024: `1.5 GiB`."""
    return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def energy(joules: float) -> str:
    """Joules as `12.3 kWh`."""
    return _scaled(joules / 3600, 1000, ("Wh", "kWh", "MWh", "GWh"))


def mass(grams: float) -> str:
    """Grams of CO2 equivalent as `1.2 kg`."""
    return _scaled(grams, 1000, ("g", "kg", "t", "kt"))


def share(ratio: float) -> str:
    """A ratio as `42 %`; small ones keep a digit."""
    value = ratio * 100
    text = f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"
    return f"{text.removesuffix('.0')}{_THIN}%"


def lasting(seconds: float) -> str:
    """`2 d 3 h`, `1 h 23 min`, `45 s`: two units, the second one cut off."""
    if seconds < 0:
        return f"\u2212{lasting(-seconds)}"
    if seconds < 60:
        return f"{number(round(seconds, 1))}{_THIN}s"
    days, rest = divmod(int(seconds), _DAY)
    parts = ((days, "d"), (rest // 3600, "h"), (rest % 3600 // 60, "min"), (rest % 60, "s"))
    first = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{_THIN}{unit}" for count, unit in parts[first : first + 2] if count)


def hours(seconds: float) -> str:
    """Sums of time that are compared with each other: `1 234 h`."""
    return f"{number(round(seconds / 3600, 2))}{_THIN}h"


def moment(seconds: float, zone: bool = True, now: float | None = None) -> Markup:
    """A point of time, as `<time>`; without the zone where the column's head has it.

    With `now`, a year that is this one is left out.
    """
    at = _utc(seconds)
    if at is None:
        return absent("a time beyond the calendar")
    this = _utc(now) if now is not None else None
    day = f"{at:%m-%d}" if this and this.year == at.year else f"{at:%Y-%m-%d}"
    text = f"{day} {at:%H:%M}{' UTC' if zone else ''}"
    return Markup('<time datetime="{}">{}</time>').format(f"{at:%Y-%m-%dT%H:%M:%SZ}", text)


def date(seconds: float) -> str:
    """`2026-01-31` of its midnight."""
    at = _utc(seconds)
    return f"{at:%Y-%m-%d}" if at else ""


def _utc(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(math.floor(seconds), UTC)
    except (OverflowError, ValueError, OSError):
        return None


def or_absent(write: Callable[..., str]) -> Callable[..., str]:
    """The same for a value that may be None; `reason` says why it is."""

    def written(value: float | None, *arguments: object, reason: str = _ABSENT) -> str:
        return absent(reason) if value is None else write(value, *arguments)

    return written


FILTERS: dict[str, Callable[..., str]] = {
    write.__name__: or_absent(write)
    for write in (number, size, energy, mass, share, lasting, hours, moment, date)
}
