"""Sums on disk: what a restart takes up again, and what it refuses."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.energy import checkpoint
from collectors.energy.idle import IdlePower
from collectors.energy.interval import NodeSnapshot, Processors, job_key
from collectors.energy.ledger import Ledger
from collectors.jobs.view import JobCpu
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading
from tests.collectors.energy.bench import (
    BOOT_ID,
    Source,
    counter,
    energy,
    run,
    shown,
    steady,
)
from tests.simulated.node import Job, Jobs, name


def test_sums_go_on_after_a_restart_within_a_boot(host, time, tmp_path):
    job = Job(1, 64, 64, time.clock(), float("inf"))
    built = {"jobs": Jobs(time, [job]), "cray": Source(counter("cray", steady(time, 100)))}
    options = {"state_directory": str(tmp_path), "idle_watts": 20.0}
    first = energy(host, built, **options)
    run(first, time, 100)
    before = shown(first, "job_energy_joules_total")
    time.pass_(60)

    second = energy(host, built, **options)
    second.tick()
    after = shown(second, "job_energy_joules_total")
    assert before.keys() == after.keys()
    assert sum(after.values()) - sum(before.values()) == pytest.approx(100 * 60)

    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("another boot\n")
    third = energy(host, built, **options)
    run(third, time, 10)
    assert sum(shown(third, "job_energy_joules_total").values()) == pytest.approx(1000)


def test_another_meter_begins_new_sums(host, time, tmp_path):
    built = {
        "cray": Source(counter("cray", steady(time, 100))),
        "rapl": Source(counter("rapl", steady(time, 50))),
    }
    run(energy(host, built, state_directory=str(tmp_path)), time, 100)
    other = energy(host, built, state_directory=str(tmp_path), source="rapl")
    run(other, time, 10)
    assert sum(shown(other, "node_energy_joules_total").values()) == pytest.approx(500)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 9}'])
def test_damaged_state_is_a_restart(host, time, tmp_path, caplog, content):
    (tmp_path / "energy.json").write_text(content)
    built = {"rapl": Source(counter("rapl", steady(time, 100)))}
    collector = energy(host, built, state_directory=str(tmp_path))
    run(collector, time, 10)
    assert sum(shown(collector, "node_energy_joules_total").values()) == pytest.approx(1000)
    assert caplog.text.count("energy counters start from zero") == 1


def test_every_number_of_the_state_is_needed(host, time, tmp_path):
    built = {
        "jobs": Jobs(time, [Job(1, 64, 64, time.clock(), float("inf"))]),
        "rapl": Source(counter("rapl", steady(time, 100))),
    }
    run(energy(host, built, state_directory=str(tmp_path)), time, 100)
    document = json.loads((tmp_path / "energy.json").read_text())
    for key in document:
        without = {each: value for each, value in document.items() if each != key}
        (tmp_path / "energy.json").write_text(json.dumps(without))
        collector = energy(host, built, state_directory=str(tmp_path))
        run(collector, time, 60)
        assert shown(collector, "energy_tick_errors_total") == {"": 0}


def test_state_that_cannot_be_written_is_said_once_and_leaves_no_old_file(
    host, time, tmp_path, caplog
):
    built = {"rapl": Source(counter("rapl", steady(time, 100)))}
    collector = energy(host, built, state_directory=str(tmp_path))
    run(collector, time, 10)
    (tmp_path / "energy.json.new").mkdir()
    run(collector, time, 30)
    assert not (tmp_path / "energy.json").exists()
    assert caplog.text.count("will start from zero") == 1
    assert sum(shown(collector, "node_energy_joules_total").values()) == pytest.approx(4000)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.data())
def test_whatever_the_state_says_is_taken_or_refused(data):
    ledger = Ledger(IdlePower())
    job = JobCpu(name(1), 5.0, 2.0, None, None)
    holding = GpuEnergyShare(name(1), 1.0)
    for at in (0.0, 10.0):
        ledger.book(
            NodeSnapshot(
                at,
                1e9 + at,
                MeterReading(at, joules=at * 100),
                Processors(at, 4),
                {job_key(job.name): job},
                {"GPU-1": GpuEnergyReading("GPU-1", at, at * 50, 0, (holding,))},
            )
        )
    with tempfile.TemporaryDirectory() as directory:
        checkpoint.save(directory, BOOT_ID, "cray", ["cray"], ledger)
        document = checkpoint.load(directory)
        same = Ledger(IdlePower())
        assert checkpoint.restore(document, BOOT_ID, "cray", same)
        assert same.jobs.keys() == ledger.jobs.keys()
        assert (same.node, same.last_snapshot, same.last_gpu_readings) == (
            ledger.node,
            ledger.last_snapshot,
            ledger.last_gpu_readings,
        )
        changed = data.draw(st.sampled_from(sorted(document.keys() - {"version"})))
        document[changed] = data.draw(values)
        Path(directory, "energy.json").write_text(json.dumps(document))
        with contextlib.suppress(ValueError):
            checkpoint.restore(checkpoint.load(directory), BOOT_ID, "cray", Ledger(IdlePower()))
