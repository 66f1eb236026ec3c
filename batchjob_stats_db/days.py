"""Days and months (UTC), each named by the epoch second it begins at."""

from datetime import UTC, datetime

DAY = 86400

_LAST = 253_402_214_400  # 9999-12-31, where the calendar of `datetime` ends


def day_of(time: int) -> int:
    """The midnight before a time."""
    return time - time % DAY


def days_of(start: int | None, end: int) -> range:
    """The midnights of the days a run touches; none before it starts."""
    if start is None:
        return range(0)
    return range(day_of(start), max(start, end) + 1, DAY)


def month_of(time: int) -> int:
    """The midnight before the first day of a time's month."""
    at = datetime.fromtimestamp(min(max(time, 0), _LAST), UTC)
    return int(datetime(at.year, at.month, 1, tzinfo=UTC).timestamp())


def month_after(month: int) -> int:
    """The beginning of the month that follows."""
    return month_of(month + 32 * DAY)
