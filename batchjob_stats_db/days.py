"""Days and calendar months (UTC), each identified by the epoch second at which it begins."""

from time import gmtime

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

DAY = 86400
LONGEST_RUN_SECONDS = 10 * 366 * DAY
"""No run is longer: a longer one is a mistake."""


def day_of(time: float) -> int:
    """The midnight before a time."""
    return int(time // DAY) * DAY


def days_of(start: float | None, end: float) -> range:
    """The midnights of the days that a run touches; none before it starts.

    Of a run that is longer than any can be, only the last of its days.
    """
    if start is None:
        return range(0)
    first, last = day_of(start), int(max(start, end))
    return range(max(first, day_of(last - LONGEST_RUN_SECONDS)), last + 1, DAY)


def midnight(time: ColumnElement[float]) -> ColumnElement[int]:
    """The same in SQL; not every database has a remainder of fractional numbers."""
    milliseconds = sa.cast(time * 1000, sa.BigInteger)
    return (milliseconds - milliseconds % (DAY * 1000)) // 1000


def month_of(time: int) -> int:
    """The midnight at which the month of a time begins."""
    return _midnight_of(_months(time))


def next_month(time: int) -> int:
    """The midnight at which the month after that of a time begins."""
    return _midnight_of(_months(time) + 1)


def _months(time: int) -> int:
    """Months from the year 0 to a time; `datetime` ends with the year 9999, clocks may not."""
    at = gmtime(time)
    return 12 * at.tm_year + at.tm_mon - 1


def _midnight_of(months: int) -> int:
    # Count years from March, so that the leap day is the last one, and month lengths repeat as 31,
    # 30, 31, 30, 31: 153 days in five months.
    year, month = divmod(months - 2, 12)
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5
    return (days - _DAYS_TO_EPOCH) * DAY


_DAYS_TO_EPOCH = 719_468  # from 0000-03-01 to 1970-01-01 in the Gregorian calendar


def whole_months(since: int, until: int) -> tuple[int, int]:
    """The part of a window that consists of whole months; twice `until` if there is none.

    The other days that begin in [since, until) are before and after that part.
    """
    first = since if since == month_of(since) else next_month(since)
    last = month_of(until)
    return (first, last) if first < last else (until, until)
