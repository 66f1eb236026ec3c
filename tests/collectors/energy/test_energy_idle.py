"""Idle power that is learned."""

import pytest

from collectors.power.meter import MeterReading
from tests.collectors.energy.fake_collectors import (
    FakeMeters,
    energy_collector,
    meter,
    samples,
)
from tests.simulated.node import write_stat


def test_idle_power_is_learned_from_idle_minutes(host, time, tmp_path):
    joules = [0.0]

    def read():
        return MeterReading(time.now, joules=joules[0])

    collector = energy_collector(host, {"rapl": FakeMeters(meter("rapl", read))})
    busy_seconds = 0.0
    for minute, (watts, load) in enumerate([(90, 0), (80, 1), (40, 32), (85, 0)]):
        for _ in range(6):
            collector.tick()
            time.pass_(10)
            joules[0] += watts * 10
            busy_seconds += load * 10
            write_stat(tmp_path / "proc", busy_seconds, 1000 + minute * 60, 64)
    collector.tick()
    (idle_watts,) = samples(collector, "node_idle_power_watts").values()
    assert idle_watts == pytest.approx(80, rel=1e-4)
