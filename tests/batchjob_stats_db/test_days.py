"""Days and months."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from batchjob_stats_db.days import DAY, day_of, days_of, month_after, month_of


def test_days_of_a_run():
    assert list(days_of(None, 5)) == []
    assert list(days_of(10, 20)) == [0]
    assert list(days_of(DAY - 1, DAY + 1)) == [0, DAY]
    assert list(days_of(100, 50)) == [0]  # clocks disagree


def test_months():
    leap_day = int(datetime(2028, 2, 29, 13, tzinfo=UTC).timestamp())
    assert datetime.fromtimestamp(month_of(leap_day), UTC) == datetime(2028, 2, 1, tzinfo=UTC)
    after = month_after(month_of(leap_day))
    assert datetime.fromtimestamp(after, UTC) == datetime(2028, 3, 1, tzinfo=UTC)


@given(st.integers(0, 200_000 * DAY))
def test_every_day_is_in_one_month(time):
    month = month_of(time)
    assert month <= day_of(time) < month_after(month)
    assert month_of(month) == month == day_of(month)


@given(st.integers())
def test_any_number_has_a_month(time):
    month_of(time)
