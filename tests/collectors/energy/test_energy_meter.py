from collectors.energy.meter import Meter, Reading, energy_between, longest_interval


def a_meter(period):
    return Meter("ipmi", "node", includes_gpus=True, period=period, read=lambda: None)


def test_a_counter_gives_its_difference():
    meter = a_meter(0)
    assert energy_between(meter, Reading(10, joules=100), Reading(20, joules=2100)) == 2000


def test_power_is_integrated_by_the_trapezoid():
    meter = a_meter(10)
    assert energy_between(meter, Reading(0, watts=100), Reading(10, watts=200)) == 1500


def test_nothing_is_known_across_series_a_counter_that_fell_or_a_repeated_reading():
    meter = a_meter(0)
    now = Reading(20, joules=50)
    assert energy_between(meter, Reading(10, joules=10, series=1), now) is None
    assert energy_between(meter, Reading(10, joules=60), now) is None
    assert energy_between(meter, now, now) is None
    assert energy_between(meter, Reading(10, watts=60), now) is None


def test_nothing_is_known_after_three_periods_without_a_reading():
    meter = a_meter(30)
    assert longest_interval(meter) == 90
    assert energy_between(meter, Reading(0, watts=100), Reading(90, watts=100)) == 9000
    assert energy_between(meter, Reading(0, watts=100), Reading(91, watts=100)) is None
