"""Times as people write and read them."""

import contextlib
import os
import time
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchjob.runtime.values import duration, with_metavar


@with_metavar("TIME")
def start_time(text: str, now: float | None = None) -> float:
    """Epoch seconds of `+90m`, `22:30` (the next one), `2026-04-04T22:30` in local time or a zone.

    `@1775307200` is in epoch seconds. `now` defaults to the time of the call. Raises ValueError.
    """
    now = time.time() if now is None else now
    if text.startswith("+"):
        return now + duration(text[1:])
    if text.startswith("@"):
        return float(text[1:])
    here = datetime.fromtimestamp(now).astimezone()
    try:
        if ":" in text and "-" not in text:
            hour, minute, second = ([int(part) for part in text.split(":")] + [0])[:3]
            at = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (at if at > here else at + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise ValueError(
            f"expected a time such as 22:30, 2026-04-04T22:30 or +90m, got {text!r}"
        ) from error


_TOLERANCE_SECONDS = 60.0


@with_metavar("TIME")
def future_time(text: str, now: float | None = None) -> float:
    """The same, but refuses times of the past, which are most often mistakes.

    Epoch seconds of the past are accepted: programs use them to mean now.
    """
    now = time.time() if now is None else now
    at = start_time(text, now)
    if at < now - _TOLERANCE_SECONDS and not text.startswith("@"):
        raise ValueError(f"expected a time in the future, got {text!r}")
    return at


# Days before now, and whether they are counted from Monday.
_DAYS_AGO = {
    "today": (0, False), "yesterday": (1, False), "this week": (0, True), "last week": (7, True),
}  # fmt: skip


def _midnight(now: float, days_ago: int, from_monday: bool) -> float:
    here = datetime.fromtimestamp(now).astimezone()
    today = here.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
    # Without its offset from UTC, which may have been another one on that day.
    return (today - timedelta(days_ago + from_monday * today.weekday())).timestamp()


@with_metavar("TIME")
def past_time(text: str, now: float | None = None) -> float:
    """Epoch seconds of `10m` or `-10m` (ago), `22:30` (the last one), `2026-04-04T22:30`.

    Days in words begin at midnight, and weeks on Monday, of local time: `today`, `yesterday`, `this
    week`, `last week`. `now` defaults to the time of the call. Raises ValueError.
    """
    now = time.time() if now is None else now
    if text.lower().replace("-", " ") in _DAYS_AGO:
        return _midnight(now, *_DAYS_AGO[text.lower().replace("-", " ")])
    try:
        if text[-1:].isalpha() and "T" not in text and "Z" not in text:
            return now - duration(text.removeprefix("-"))
        at = start_time(text, now)
    except ValueError as error:
        raise ValueError(
            f"expected a time such as 22:30 or 2026-04-04T22:30, yesterday, or how long ago such "
            f"as 2d, got {text!r}"
        ) from error
    return at - 86400 if ":" in text and "-" not in text else at


def format_time(at: float, zone: tzinfo | None = None) -> str:
    """`2026-04-04 14:53:20 CEST`: a time for people, always with its zone (default: local).

    `@253402300800` after the year 9999, where calendars end.
    """
    then = calendar_time(at, zone)
    return f"@{at:.0f}" if then is None else f"{then:%Y-%m-%d %H:%M:%S %Z}"


def format_exact_time(at: float, zone: tzinfo | None = None) -> str:
    """The same with milliseconds unless they are zero: `2026-04-04 14:53:20.250 CEST`."""
    then = calendar_time(round(at, 3), zone)
    if then is None:
        return f"@{at:.0f}"
    return f"{then.replace(tzinfo=None).isoformat(' ', _timespec(then))} {then:%Z}"


def format_date(at: float) -> str:
    """`2026-04-04`, the day in UTC; `@253402300800` after the year 9999."""
    then = calendar_time(at, UTC)
    return f"@{at:.0f}" if then is None else f"{then:%Y-%m-%d}"


def calendar_time(at: float, zone: tzinfo | None = None) -> datetime | None:
    """The time in a zone (default: local), or None after the year 9999."""
    try:
        return datetime.fromtimestamp(at, zone).astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return None


def _timespec(at: datetime) -> str:
    return "milliseconds" if at.microsecond else "seconds"


def local_zone() -> str:
    """The name of the local time zone, such as Europe/Paris; UTC if it has none."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        with contextlib.suppress(OSError):
            name = str(Path("/etc/localtime").readlink()).partition("zoneinfo/")[2]
    try:
        return ZoneInfo(name).key or "UTC"
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return "UTC"


def to_milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def rfc3339(seconds: float | None) -> str | None:
    """`2026-04-04T20:30:00Z`, with milliseconds unless they are zero.

    None if the time is unknown or after the year 9999.
    """
    if seconds is None:
        return None
    try:
        at = datetime.fromtimestamp(round(seconds, 3), UTC)
        return at.isoformat(timespec=_timespec(at)).replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None
