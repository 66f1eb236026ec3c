"""A GPU's energy over driver reloads and missing counters."""

import pytest

from collectors.gpu.metrics import ENERGY, POWER, POWER_LIMIT
from collectors.gpu.reading import EnergyCounter


@pytest.fixture
def follow():
    counter = EnergyCounter(max_gap_seconds=30)

    def step(at, joules=None, watts=None, session=1):
        readings = {ENERGY: joules, POWER: watts}
        values = {quantity: value for quantity, value in readings.items() if value is not None}
        energy = counter.update(values, at, session)
        return energy and (energy.joules, energy.series)

    return step


def test_counter_is_returned_unchanged(follow):
    assert [follow(0, 100.0), follow(10, 150.0)] == [(100.0, 0), (150.0, 0)]


def test_counter_that_decreases_starts_a_new_series(follow):
    assert [follow(0, 100.0), follow(10, 5.0)] == [(100.0, 0), (5.0, 1)]


def test_driver_reload_starts_a_new_series(follow):
    assert [follow(0, 100.0), follow(10, 500.0, session=2)] == [(100.0, 0), (500.0, 1)]


def test_power_is_integrated_by_trapezoid(follow):
    steps = [follow(0, watts=100), follow(10, watts=300), follow(20, watts=300)]
    assert steps == [(0.0, 0), (2000.0, 0), (5000.0, 0)]


def test_power_is_not_integrated_over_a_long_gap(follow):
    assert [follow(0, watts=100), follow(31, watts=100)] == [(0.0, 0), (0.0, 1)]


def test_switch_between_counter_and_power_starts_a_new_series(follow):
    steps = [follow(0, 100.0), follow(10, watts=50), follow(20, watts=50), follow(30, 100.0)]
    assert steps == [(100.0, 0), (100.0, 1), (600.0, 1), (100.0, 2)]


def test_no_values_give_no_energy(follow):
    assert follow(0) is None


def test_implausible_power_is_dropped_and_not_integrated():
    counter, shown = EnergyCounter(max_gap_seconds=30), []
    for at, watts in enumerate([300.0, 300.0, 65_535.0, 300.0, 300.0]):
        values = counter.drop_implausible_power({POWER: watts, POWER_LIMIT: 400.0})
        energy = counter.update(values, at * 10.0, 1)
        shown.append((values.get(POWER), energy and (energy.joules, energy.series)))
    assert shown == [
        (300.0, (0.0, 0)),
        (300.0, (3000.0, 0)),
        (None, None),
        (300.0, (3000.0, 1)),
        (300.0, (6000.0, 1)),
    ]
