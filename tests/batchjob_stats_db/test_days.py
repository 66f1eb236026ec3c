"""Days and spans of days."""

from hypothesis import given
from hypothesis import strategies as st

from batchjob_stats_db.days import DAY, SPANS, day_of, days_of, span_of, spans


def test_days_of_a_run():
    assert list(days_of(None, 5)) == []
    assert list(days_of(10, 20)) == [0]
    assert list(days_of(DAY - 1, DAY + 1)) == [0, DAY]
    assert list(days_of(100, 50)) == [0]  # clocks disagree


def test_a_window_is_made_up_of_few_spans():
    assert spans(DAY, 7 * DAY) == {1: [DAY, 6 * DAY], 2: [2 * DAY, 4 * DAY]}
    assert {days: each for days, each in spans(0, 256 * DAY).items() if each} == {256: [0]}
    assert spans(1, 2 * DAY + 1) == {1: [DAY, 2 * DAY]}  # days that begin in it
    assert spans(5 * DAY, 5 * DAY) == {1: []}


@given(st.integers(0, 30_000 * DAY), st.integers(0, 1000 * DAY))
def test_each_day_of_a_window_is_in_one_span(since, length):
    found = spans(since, since + length)
    days = [
        day
        for days, begins in found.items()
        for begin in begins
        for day in range(begin, begin + days * DAY, DAY)
    ]
    assert sorted(days) == list(range(-day_of(-since), since + length, DAY))
    assert all(begin == span_of(begin, days) for days, each in found.items() for begin in each)
    assert all(len(begins) <= 2 for days, begins in found.items() if days < SPANS[-1])
