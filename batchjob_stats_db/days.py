"""Days and spans of days (UTC), each named by the epoch second it begins at."""

DAY = 86400

SPANS = (2, 4, 8, 16, 32, 64, 128, 256)
"""Days in the spans for which sums are kept too, each made of two of the shorter ones.

Spans of one length follow each other from the epoch on, so that a window is made up of two of each
length at most, and of half as many most often: 31 days of 5, a year of 8 or 9.
"""


def day_of(time: int) -> int:
    """The midnight before a time."""
    return time - time % DAY


def days_of(start: int | None, end: int) -> range:
    """The midnights of the days a run touches; none before it starts."""
    if start is None:
        return range(0)
    return range(day_of(start), max(start, end) + 1, DAY)


def span_of(time: int, days: int) -> int:
    """The midnight at which the span of so many days begins that a time lies in."""
    return time - time % (days * DAY)


def spans(since: int, until: int) -> dict[int, list[int]]:
    """The fewest spans that make up the days that begin in [since, until).

    Their beginnings by their length in days, of which one is a day.
    """
    begin, end = _midnight_after(since), _midnight_after(until)
    found = {}
    days = 1
    for longer in SPANS:
        first, last = -span_of(-begin, longer), span_of(end, longer)
        if first >= last:
            break
        found[days] = [*range(begin, first, days * DAY), *range(last, end, days * DAY)]
        begin, end, days = first, last, longer
    found[days] = list(range(begin, end, days * DAY))
    return found


def _midnight_after(time: int) -> int:
    return -day_of(-time)
