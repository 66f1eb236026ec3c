"""Busy seconds of a GPU: a recorded ring of samples, gaps, steps of the clock, and a fallback."""

from dataclasses import replace
from pathlib import Path

import pytest

from collectors.gpu import nvidia, nvidia_watch
from collectors.gpu.busy import BusyCounter, UtilizationSample
from tests.helpers.clock import Clock

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOW = 1795745230.0

# Loads on an H200, by the times between which it ran nothing else: seconds of kernels or copies.
LOADS = {
    "one kernel of 14 s": (1795745232.5, 1795745248.4, 14.03),
    "0.1 of each 1 ms for 4 s": (1795745253.4, 1795745259.2, 0.43),
    "40 of each 100 ms for 8 s": (1795745264.2, 1795745274.2, 3.23),
    "two jobs in turns": (1795745278.9, 1795745287.4, 6.1),
    "copies to the GPU": (1795745304.6, 1795745312.7, 6.04),
}


def recorded_samples():
    """(epoch microseconds, per cent) of all samples."""
    words = (FIXTURES / "nvml_samples" / "h200_driver_580.txt").read_text().split()
    return [tuple(map(int, word.split(":"))) for word in words]


@pytest.fixture
def pynvml(fake_nvml):
    import pynvml

    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


@pytest.fixture
def replay(fake_nvml, pynvml):
    """Read the ring of 14 s at an interval; returns (time, busy, observed) of each reading."""

    def read_every(interval, until=1795745320.0):
        fake_nvml.add_gpus(1)
        samples, counter, at = recorded_samples(), BusyCounter(), 1795745230.0
        readings = []
        while at < until:
            ring = [each for each in samples if at - 14.1 <= each[0] / 1e6 <= at]
            fake_nvml.set({"gpu0.samples": " ".join(f"{when}:{used}" for when, used in ring)})
            since = counter.newest(1, at) or 0
            counter.add(nvidia.nvml.read(pynvml, 0, since, nvidia.Counter()).samples, 1, at)
            readings.append((at, counter.busy_seconds, counter.observed_seconds))
            at += interval
        return readings

    return read_every


def test_busy_seconds_are_those_of_the_load(replay):
    readings = replay(0.5)

    def at(moment):
        return next(busy for when, busy, _ in readings if when >= moment)

    for name, (begin, end, truth) in LOADS.items():
        assert at(end) - at(begin) == pytest.approx(truth, rel=0.025), name


@pytest.mark.parametrize("interval", [5.0, 10.0, 13.0])
def test_nothing_is_missed_at_any_interval_up_to_13_seconds(replay, interval):
    (first, *_), (last, busy, observed) = (reading := replay(interval))[0], reading[-1]
    assert observed == pytest.approx(last - first, abs=0.3)
    every_second = replay(1.0, until=last + 0.5)[-1]
    assert busy == pytest.approx(every_second[1], abs=0.01)


def test_time_that_the_driver_has_forgotten_is_not_observed(replay):
    (first, *_), (last, busy, observed) = (reading := replay(30.0))[0], reading[-1]
    assert observed < 0.5 * (last - first)
    assert busy <= observed


def samples(*stamps, fraction=1.0):
    return [UtilizationSample(int(stamp * 1e6), fraction) for stamp in stamps]


@pytest.fixture
def counter():
    """One that has seen a GPU at work for 0.4 s, until 100 s."""
    counter = BusyCounter()
    counter.add(samples(99.6), 1, 99.6)
    counter.add(samples(99.8, 100.0), 1, 100.0)
    assert (counter.busy_seconds, counter.observed_seconds) == pytest.approx((0.4, 0.4))
    return counter


def observed_after(counter, stamps, now, session=1):
    before = counter.observed_seconds
    counter.add(samples(*stamps), session, now)
    return pytest.approx(counter.observed_seconds - before)


def test_first_samples_are_not_counted():
    counter = BusyCounter()
    assert observed_after(counter, [90.0, 90.2, 90.4], 90.5) == 0
    assert observed_after(counter, [90.6], 90.6) == 0.2


def test_gap_counts_as_one_sample(counter):
    assert observed_after(counter, [105.0, 105.2], 105.3) == 0.4


def test_reload_of_the_driver_starts_anew(counter):
    assert counter.newest(2, 101.0) is None
    assert observed_after(counter, [100.2, 100.4], 100.5, session=2) == 0
    assert observed_after(counter, [100.6], 100.6, session=2) == 0.2


def test_clock_that_is_set_back_starts_anew(counter):
    assert counter.newest(1, 40.0) is None, "otherwise the driver would return nothing for a minute"
    assert observed_after(counter, [99.8, 100.0, 39.9], 40.0) == 0
    assert observed_after(counter, [40.1], 40.2) == 0.2


def test_samples_from_before_a_small_step_back_are_not_counted_twice(counter):
    assert observed_after(counter, [95.2], 95.2) == 0
    assert observed_after(counter, [99.8, 100.0, 95.4, 95.6], 95.7) == 0.2


def test_impossible_value_is_not_observed(counter):
    busy = counter.busy_seconds
    counter.add(samples(100.2, fraction=None) + samples(100.4), 1, 100.5)
    assert counter.busy_seconds - busy == pytest.approx(0.2)


def counted(driver):
    """Busy and observed seconds of the first GPU."""
    counter = driver.busy_counters[driver.known_gpus()[0].gpu.uuid]
    if counter.last_stamp is None:
        return None, None
    return counter.busy_seconds, counter.observed_seconds


def test_samples_are_read_whatever_the_interval_is(host):
    assert nvidia.NvidiaGpus(host, 300.0).interval <= 13
    assert nvidia.NvidiaGpus(host, 5.0).interval == 5


def test_busy_seconds_are_exposed(fake_nvml, driver, eventually):
    driver.host = replace(driver.host, clock=Clock(NOW))  # also of the samples
    fake_nvml.add_gpus(1)
    first = int(NOW * 1e6)
    fake_nvml.set({"gpu0.samples": f"{first}:100"})
    driver.start()
    eventually(lambda: driver.known_gpus() and counted(driver) == (0, 0))
    fake_nvml.set({"gpu0.samples": f"{first}:100 {first + 200_000}:49 {first + 400_000}:0"})
    eventually(lambda: counted(driver) == pytest.approx((0.099, 0.4)))


def test_utilization_stands_in_where_the_driver_takes_no_samples(
    fake_nvml, driver, eventually, monkeypatch
):
    monkeypatch.setattr(nvidia_watch, "STEP_SECONDS", 0.005)
    fake_nvml.add_gpus(1, **{"gpu0.utilization": 25})
    driver.start()
    busy, observed = eventually(
        lambda: driver.known_gpus() and (found := counted(driver))[1] and found
    )
    assert busy == pytest.approx(0.25 * observed, rel=1e-3)


def test_gpu_without_any_utilization_has_no_busy_seconds(fake_nvml, driver, eventually):
    fake_nvml.add_gpus(1)
    fake_nvml.create_mig_instances(0, {0: {}})
    driver.start()
    eventually(driver.known_gpus)
    assert counted(driver) == (None, None)
