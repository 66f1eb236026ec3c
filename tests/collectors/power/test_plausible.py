"""A glitch of a gauge is no reading; a node that begins to work is."""

import pytest

from collectors.power.plausible import PlausiblePower


@pytest.fixture
def gauge():
    made = PlausiblePower()
    assert all(made.accept(300.0) for _ in range(10))
    return made


@pytest.mark.parametrize("glitch", [65535.0, 99_999_999.0, 3001.0, -1.0, float("nan")])
def test_a_glitch_is_refused_and_parts_the_readings_around_it(gauge, glitch):
    before = gauge.series
    assert not gauge.accept(glitch)
    assert gauge.series != before
    assert gauge.accept(310.0)
    assert gauge.series != before


@pytest.mark.parametrize("glitch", [65535.0, float("inf")])
def test_also_as_the_first_reading(glitch):
    assert not PlausiblePower().accept(glitch)


def test_a_step_is_believed_when_it_stays(gauge):
    assert [gauge.accept(x) for x in (5000.0, 5100.0, 4900.0, 5000.0)] == [
        False,
        False,
        True,
        True,
    ]


def test_glitches_that_disagree_are_no_step(gauge):
    assert not any(gauge.accept(x) for x in (5000.0, 30_000.0, 4000.0, 40_000.0, 9000.0))


def test_nothing_beyond_all_nodes_is_believed_however_often():
    gauge = PlausiblePower()
    assert not any(gauge.accept(65535.0) for _ in range(100))


def test_a_rated_power_bounds_from_the_first_reading_on():
    gauge = PlausiblePower()
    assert gauge.accept(500.0, rated_watts=300.0)  # above it for a moment
    assert not gauge.accept(601.0, rated_watts=300.0)
