"""Template filters that format numbers and times; unknown values are a dash with a reason."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial

from markupsafe import Markup

from batchjob.runtime import formatting
from batchjob.runtime.formatting import digits
from batchjob.runtime.times import rfc3339

_NARROW_SPACE = "\u202f"  # narrow no-break space: between thousands, and before a unit
_UNKNOWN = "not known"


def trusted_html(text: str) -> Markup:
    """Mark HTML as safe; the caller has escaped all parts of it."""
    return str.__new__(Markup, text)  # Markup(text) looks for `__html__`, which is slow


@lru_cache(256)
def absent(reason: str = _UNKNOWN) -> Markup:
    """A dash; the reason is its tooltip, and is read out by screen readers."""
    return Markup(
        '<span class="absent" title="{0}"><span aria-hidden="true">\u2013</span>'
        '<span class="visually-hidden">{0}</span></span>'
    ).format(reason)


def number(value: float | None) -> str:
    """`12 345`; small numbers with three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}".replace(",", _NARROW_SPACE) if abs(value) >= 100 else digits(value)


def _with_narrow_space(format_value: Callable[..., str]) -> Callable[..., str]:
    return partial(format_value, space=_NARROW_SPACE)


size = _with_narrow_space(formatting.size)
energy = _with_narrow_space(formatting.energy)
mass = _with_narrow_space(formatting.mass)
duration = _with_narrow_space(formatting.format_duration)
exact_duration = _with_narrow_space(formatting.format_exact_duration)


_percent = lru_cache(2048)(_with_narrow_space(formatting.share))


def percent(ratio: float) -> str:
    """A ratio as `42 %`. Cached, since pages have thousands of them, and few different texts."""
    percentage = ratio * 100
    return _percent(round(percentage, 1 if percentage < 9.95 else 0) / 100)


def hours(seconds: float) -> str:
    """A duration in hours, `1 234 h`, for totals that are compared with each other."""
    shown = round(seconds / 3600, 2)
    if seconds > 0 and not shown:
        return f"< 0.01{_NARROW_SPACE}h"
    return f"{number(shown)}{_NARROW_SPACE}h"


def moment(seconds: float, zone: bool = True, now: float | None = None) -> Markup:
    """A point in time as `<time>`; without the zone if the column's heading has it.

    With `now`, the current year is left out.
    """
    return _moment(seconds, zone, None if now is None else _year(now))


@lru_cache(4096)
def _moment(seconds: float, zone: bool, year: int | None) -> Markup:
    time = _utc(seconds)
    if time is None:
        return absent("a time beyond the calendar")
    exact = time.isoformat()  # 2026-01-31T12:00:00+00:00
    day = exact[5:10] if year == time.year else exact[:10]
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


def clock(seconds: float) -> str:
    """`14:00`, in UTC."""
    at = _utc(seconds)
    return f"{at:%H:%M}" if at else ""


@lru_cache(8)
def _year(seconds: float) -> int | None:
    at = _utc(seconds)
    return at.year if at else None


def _utc(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(math.floor(seconds), UTC)
    except (OverflowError, ValueError, OSError):
        return None


def or_absent(format_value: Callable[..., str]) -> Callable[..., str]:
    """Wrap a formatter so that it accepts None; `reason` says why the value is missing."""

    def format_or_absent(value: float | None, *arguments: object, reason: str = _UNKNOWN) -> str:
        return absent(reason) if value is None else format_value(value, *arguments)

    return format_or_absent


_FORMATTERS: dict[str, Callable[..., str]] = {
    "number": number, "size": size, "energy": energy, "mass": mass, "percent": percent,
    "duration": duration, "exact_duration": exact_duration, "hours": hours, "date": date,
    "moment": moment, "exact_moment": exact_moment, "iso": iso,
}  # fmt: skip
FILTERS = {name: or_absent(format_value) for name, format_value in _FORMATTERS.items()}
