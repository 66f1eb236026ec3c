from collectors.power.meter import MeterReading, energy_between


def test_a_counter_gives_its_difference():
    assert energy_between(MeterReading(10, joules=100), MeterReading(20, joules=2100), 30) == 2000


def test_power_is_integrated_by_the_trapezoid():
    assert energy_between(MeterReading(0, watts=100), MeterReading(10, watts=200), 30) == 1500


def test_nothing_is_known_across_series_a_counter_that_fell_or_a_repeated_reading():
    now = MeterReading(20, joules=50)
    assert energy_between(MeterReading(10, joules=10, series=1), now, 30) is None
    assert energy_between(MeterReading(10, joules=60), now, 30) is None
    assert energy_between(now, now, 30) is None
    assert energy_between(MeterReading(10, watts=60), now, 30) is None


def test_nothing_is_known_between_powers_too_far_apart():
    assert energy_between(MeterReading(0, watts=100), MeterReading(90, watts=100), 90) == 9000
    assert energy_between(MeterReading(0, watts=100), MeterReading(91, watts=100), 90) is None
