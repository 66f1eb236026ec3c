"""Energy between two readings of a meter."""

from collectors.power.meter import MeterReading, energy_between


def test_counter_energy_is_the_difference():
    assert energy_between(MeterReading(10, joules=100), MeterReading(20, joules=2100), 30) == 2000


def test_power_is_integrated_by_the_trapezoidal_rule():
    assert energy_between(MeterReading(0, watts=100), MeterReading(10, watts=200), 30) == 1500


def test_unrelated_readings_have_no_energy():
    later = MeterReading(20, joules=50)
    assert energy_between(MeterReading(10, joules=10, series=1), later, 30) is None
    assert energy_between(MeterReading(10, joules=60), later, 30) is None
    assert energy_between(later, later, 30) is None
    assert energy_between(MeterReading(10, watts=60), later, 30) is None


def test_power_readings_beyond_the_gap_limit_have_no_energy():
    assert energy_between(MeterReading(0, watts=100), MeterReading(90, watts=100), 90) == 9000
    assert energy_between(MeterReading(0, watts=100), MeterReading(91, watts=100), 90) is None
