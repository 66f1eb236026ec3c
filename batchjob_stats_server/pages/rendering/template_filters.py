"""Numbers and times for people; unknown values are a dash with a reason."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial

from markupsafe import Markup

from batchjob.runtime import formatting
from batchjob.runtime.formatting import digits
from batchjob.runtime.times import rfc3339

_THIN = "\u202f"  # narrow no-break space: between thousands, and before a unit
_ABSENT = "not known"


@lru_cache(256)
def absent(reason: str = _ABSENT) -> Markup:
    """A dash; the reason is its tooltip, and is read out by screen readers."""
    return Markup(
        '<span class="absent" title="{0}"><span aria-hidden="true">\u2013</span>'
        '<span class="visually-hidden">{0}</span></span>'
    ).format(reason)


def number(value: float | None) -> str:
    """`12 345`; small numbers with three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}".replace(",", _THIN) if abs(value) >= 100 else digits(value)


def _thin(write: Callable[..., str]) -> Callable[..., str]:
    return partial(write, space=_THIN)


size, energy, mass = _thin(formatting.size), _thin(formatting.energy), _thin(formatting.mass)
lasting = _thin(formatting.lasting)
lasting_exactly = _thin(formatting.lasting_exactly)


_share = lru_cache(2048)(_thin(formatting.share))


def share(ratio: float) -> str:
    """A ratio as `42 %`; pages have thousands of them, and few that are written differently."""
    percent = ratio * 100
    return _share(round(percent, 1 if percent < 9.95 else 0) / 100)


def hours(seconds: float) -> str:
    """Totals of time that are compared with each other: `1 234 h`."""
    shown = round(seconds / 3600, 2)
    if seconds > 0 and not shown:
        return f"< 0.01{_THIN}h"
    return f"{number(shown)}{_THIN}h"


def moment(seconds: float, zone: bool = True, now: float | None = None) -> Markup:
    """A point in time as `<time>`; without the zone if the column's heading has it.

    With `now`, the current year is left out.
    """
    return _moment(seconds, zone, None if now is None else _year(now))


@lru_cache(4096)
def _moment(seconds: float, zone: bool, year: int | None) -> Markup:
    at = _utc(seconds)
    if at is None:
        return absent("a time beyond the calendar")
    exact = at.isoformat()  # 2026-01-31T12:00:00+00:00
    day = exact[5:10] if year == at.year else exact[:10]
    text = f"{day} {exact[11:16]}{' UTC' if zone else ''}"
    return Markup(f'<time datetime="{exact[:19]}Z">{text}</time>')  # noqa: S704 (all digits)


def exact_moment(seconds: float) -> Markup:
    """A point in time as `<time>` with seconds, and milliseconds if known."""
    text = rfc3339(seconds)
    if text is None:
        return absent("a time beyond the calendar")
    words = text.replace("T", " ").removesuffix("Z")
    return Markup('<time datetime="{}">{} UTC</time>').format(text, words)


def iso(seconds: float) -> str:
    """`2026-01-31T12:00:00Z`, for scripts."""
    at = _utc(seconds)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at else ""


def date(seconds: float) -> str:
    """`2026-01-31` for its midnight."""
    at = _utc(seconds)
    return at.isoformat()[:10] if at else ""


@lru_cache(8)
def _year(seconds: float) -> int | None:
    at = _utc(seconds)
    return at.year if at else None


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


_WRITERS: dict[str, Callable[..., str]] = {
    "number": number, "size": size, "energy": energy, "mass": mass, "share": share,
    "lasting": lasting, "lasting_exactly": lasting_exactly, "hours": hours, "date": date,
    "moment": moment, "exact_moment": exact_moment, "iso": iso,
}  # fmt: skip
FILTERS = {name: or_absent(write) for name, write in _WRITERS.items()}
