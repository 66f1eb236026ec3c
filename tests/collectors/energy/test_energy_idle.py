"""Idle power from a file, or learned."""

import pytest

from batchjob.runtime.settings import SettingsError
from collectors.power.meter import MeterReading
from tests.collectors.energy.bench import Source, counter, energy, run, shown, steady
from tests.simulated.node import write_stat


def test_idle_power_by_node_type_from_a_file(host, time, tmp_path):
    table = tmp_path / "idle.yaml"
    table.write_text('"gpu-*": 420\nthin: 135.5\n')
    built = {"rapl": Source(counter("rapl", steady(time, 300)))}
    collector = energy(host, built, idle_file=str(table), node_type="thin")
    run(collector, time, 10)
    assert shown(collector, "node_idle_power_watts") == {'origin="configured"': 135.5}


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
def test_an_idle_file_that_is_none_is_refused(host, tmp_path, content, complaint):
    table = tmp_path / "idle.yaml"
    table.write_text(content)
    with pytest.raises(SettingsError, match=complaint):
        energy(host, {}, idle_file=str(table))
    with pytest.raises(SettingsError, match="No such file"):
        energy(host, {}, idle_file=str(tmp_path / "nowhere"))


def test_idle_power_is_learned_from_quiet_minutes(host, time, tmp_path):
    drawn = [80.0]
    joules = [0.0]

    def read():
        return MeterReading(time.now, joules=joules[0])

    collector = energy(host, {"rapl": Source(counter("rapl", read))})
    busy = 0.0
    for minute, (watts, load) in enumerate([(90, 0), (80, 1), (40, 32), (85, 0)]):
        drawn[0] = watts
        for _ in range(6):
            collector.tick()
            time.pass_(10)
            joules[0] += watts * 10
            busy += load * 10
            write_stat(tmp_path / "proc", busy, 1000 + minute * 60, 64)
    collector.tick()
    (learned,) = shown(collector, "node_idle_power_watts").values()
    assert learned == pytest.approx(80, rel=1e-4)
