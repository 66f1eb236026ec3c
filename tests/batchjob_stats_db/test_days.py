"""Days and months."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob_stats_db.days import DAY, days_of, month_of, next_month, whole_months


def test_days_of_a_run():
    assert list(days_of(None, 5)) == []
    assert list(days_of(10, 20)) == [0]
    assert list(days_of(DAY - 1, DAY + 1)) == [0, DAY]
    assert list(days_of(100, 50)) == [0]  # clocks disagree


def timestamp(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("time", "begin", "following"),
    [
        ("2024-02-29T23:59:59", "2024-02-01", "2024-03-01"),
        ("2025-12-31", "2025-12-01", "2026-01-01"),
        ("2026-01-01", "2026-01-01", "2026-02-01"),
        ("2000-02-29", "2000-02-01", "2000-03-01"),
    ],
)
def test_months(time, begin, following):
    assert month_of(timestamp(time)) == timestamp(begin)
    assert next_month(timestamp(time)) == timestamp(following)


def test_months_after_the_year_9999():
    last = timestamp("9999-12-01")
    assert next_month(last) == last + 31 * DAY == month_of(last + 40 * DAY)


@given(st.integers(-(10**10), 2 * 10**11))
def test_months_match_the_calendar(time):
    first = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time)).replace(
        day=1, hour=0, minute=0, second=0
    )
    assert month_of(time) == first.timestamp()


@given(st.integers(0, 30_000 * DAY), st.integers(0, 1000 * DAY))
def test_window_is_whole_months_and_the_days_around_them(since, length):
    until = since + length
    first, last = whole_months(since, until)
    if first == last:
        assert (first, last) == (until, until)
        assert next_month(since) == until or next_month(next_month(since)) > until
    else:
        assert since <= first < last <= until
        assert (month_of(first), month_of(last)) == (first, last)
        assert first - since < 31 * DAY
        assert until - last < 31 * DAY
