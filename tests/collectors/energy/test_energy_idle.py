"""Idle power, configured in a file or learned."""

import pytest

from batchjob.runtime.settings import SettingsError
from collectors.power.meter import MeterReading
from tests.collectors.energy.fake_collectors import (
    FakeMeters,
    constant_power,
    energy_collector,
    meter,
    run_for,
    samples,
)
from tests.simulated.node import write_stat


def test_idle_power_of_the_node_type_is_read_from_a_file(host, time, tmp_path):
    idle_file = tmp_path / "idle.yaml"
    idle_file.write_text('"gpu-*": 420\nthin: 135.5\n')
    collectors = {"rapl": FakeMeters(meter("rapl", constant_power(time, 300)))}
    collector = energy_collector(host, collectors, idle_file=str(idle_file), node_type="thin")
    run_for(collector, time, 10)
    assert samples(collector, "node_idle_power_watts") == {'origin="configured"': 135.5}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("- 1", "expected a mapping of node types to watts"),
        ("thin: many", "thin: expected at least 0 watts, got 'many'"),
        ("thin: -1", "thin: expected at least 0 watts, got -1"),
        ("thin: true", "thin: expected at least 0 watts, got True"),
        ("a: [", "not YAML"),
    ],
)
def test_invalid_idle_file_is_rejected(host, tmp_path, content, complaint):
    idle_file = tmp_path / "idle.yaml"
    idle_file.write_text(content)
    with pytest.raises(SettingsError, match=complaint):
        energy_collector(host, {}, idle_file=str(idle_file))
    with pytest.raises(SettingsError, match="No such file"):
        energy_collector(host, {}, idle_file=str(tmp_path / "nowhere"))


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
