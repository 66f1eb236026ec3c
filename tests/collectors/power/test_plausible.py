"""Rejection of implausible power readings."""

import pytest

from collectors.power.meter import PlausiblePower


@pytest.fixture
def power_gauge():
    gauge = PlausiblePower()
    assert all(gauge.accept(300.0) for _ in range(10))
    return gauge


@pytest.mark.parametrize("glitch", [65535.0, 99_999_999.0, 3001.0, -1.0, float("nan")])
def test_glitch_is_rejected_and_starts_a_new_series(power_gauge, glitch):
    before = power_gauge.series
    assert not power_gauge.accept(glitch)
    assert power_gauge.series != before
    assert power_gauge.accept(310.0)
    assert power_gauge.series != before


@pytest.mark.parametrize("glitch", [65535.0, float("inf")])
def test_glitch_as_first_reading_is_rejected(glitch):
    assert not PlausiblePower().accept(glitch)


def test_lasting_step_is_accepted(power_gauge):
    assert [power_gauge.accept(watts) for watts in (5000.0, 5100.0, 4900.0, 5000.0)] == [
        False,
        False,
        True,
        True,
    ]


def test_inconsistent_glitches_are_rejected(power_gauge):
    assert not any(
        power_gauge.accept(watts) for watts in (5000.0, 30_000.0, 4000.0, 40_000.0, 9000.0)
    )


def test_power_beyond_the_absolute_limit_is_never_accepted():
    power_gauge = PlausiblePower()
    assert not any(power_gauge.accept(65535.0) for _ in range(100))


def test_rated_power_limits_the_first_reading():
    power_gauge = PlausiblePower()
    assert power_gauge.accept(500.0, rated_watts=300.0)  # briefly above it
    assert not power_gauge.accept(601.0, rated_watts=300.0)
