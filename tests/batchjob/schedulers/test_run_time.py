"""How long an ended job ran, by one rule for all sources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.records import run_time


@pytest.mark.parametrize(
    ("counted", "suspended", "expected"),
    [
        (None, None, (10_800, 0)),  # nothing but the times
        (None, 7200, (3600, 7200)),
        (3600, 7200, (3600, 7200)),
        (3600, None, (3600, 7200)),  # the counter stood while it was suspended
        (3600, 0, (3600, 0)),  # it was not suspended, but its node started it late
        (10_801, None, (10_800, 0)),  # rounded
        (20_000, 7200, (3600, 7200)),  # impossible: more than there was time for
        (-1, None, (10_800, 0)),
        (10_800, 8_553_600, (10_800, 0)),  # impossible: 99 days of three hours
        (3600, 8_553_600, (3600, 7200)),
        (None, 8_553_600, (10_800, 0)),
    ],
)
def test_run_time_of_three_hours(counted, suspended, expected):
    assert run_time(1000, 11_800, counted, suspended) == expected


def test_job_without_a_start_or_an_end_has_no_run_time():
    assert run_time(None, 5) == run_time(5, None, 3) == (None, None)


@given(st.integers(-9, 2**40), st.none() | st.floats(), st.none() | st.floats(0, 2**40))
def test_run_time_fits_between_start_and_end(length, counted, suspended):
    elapsed, stopped = run_time(0, length, counted, suspended)
    assert 0 <= elapsed <= max(0, length)
    assert 0 <= stopped <= max(0, length)
