"""The state file: totals that a restart continues, and files that it rejects."""

import contextlib
import itertools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob_exporter.exposition import render
from collectors.energy import checkpoint
from collectors.energy.ledger import IdlePower, Ledger
from collectors.energy.split import NodeSnapshot
from collectors.host import Host
from collectors.jobs.view import JobCpu, make_name
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading
from collectors.state import StateFile
from tests.collectors.energy.fake_collectors import (
    FakeMeters,
    constant_power,
    energy_collector,
    meter,
    run_for,
    samples,
)
from tests.simulated.node import Job, Jobs, name


def test_totals_continue_after_a_restart_within_the_same_boot(host, time, tmp_path):
    job = Job(1, 64, 64, time.clock(), float("inf"))
    collectors = {
        "jobs": Jobs(time, [job]),
        "cray": FakeMeters(meter("cray", constant_power(time, 100))),
    }
    options = {"state": str(tmp_path), "idle_watts": 20.0}
    first = energy_collector(host, collectors, **options)
    run_for(first, time, 100)
    before = samples(first, "job_energy_joules_total")
    time.pass_(60)

    second = energy_collector(host, collectors, **options)
    second.tick()
    after = samples(second, "job_energy_joules_total")
    assert before.keys() == after.keys()
    assert sum(after.values()) - sum(before.values()) == pytest.approx(100 * 60)

    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("another boot\n")
    third = energy_collector(host, collectors, **options)
    run_for(third, time, 10)
    assert sum(samples(third, "job_energy_joules_total").values()) == pytest.approx(1000)


def test_energy_of_an_outage_is_booked_once_the_jobs_are_known_again(host, time, tmp_path):
    jobs = Jobs(time, [Job(1, 64, 64, time.clock(), float("inf"))])
    collectors = {"jobs": jobs, "rapl": FakeMeters(meter("rapl", constant_power(time, 100), "cpu"))}
    options = {"state": str(tmp_path), "idle_watts": 20.0}
    first = energy_collector(host, collectors, **options)
    run_for(first, time, 100)
    before = samples(first, "job_energy_joules_total")
    time.pass_(60)

    jobs.settled = False
    second = energy_collector(host, collectors, **options)
    second.tick()
    jobs.settled = True
    time.pass_(second.seconds_until_next_tick())
    second.tick()
    after = samples(second, "job_energy_joules_total")
    assert sum(after.values()) - sum(before.values()) == pytest.approx(100 * 60, abs=100)


def test_jobs_that_stay_unknown_do_not_keep_the_energy_from_being_booked(host, time, tmp_path):
    jobs = Jobs(time, [Job(1, 64, 64, time.clock(), float("inf"))])
    jobs.settled = False
    collectors = {"jobs": jobs, "rapl": FakeMeters(meter("rapl", constant_power(time, 100), "cpu"))}
    collector = energy_collector(host, collectors, state=str(tmp_path))
    run_for(collector, time, 60)
    assert sum(samples(collector, "node_energy_joules_total").values()) > 100 * 20


def test_totals_restart_with_another_meter(host, time, tmp_path):
    collectors = {
        "cray": FakeMeters(meter("cray", constant_power(time, 100))),
        "rapl": FakeMeters(meter("rapl", constant_power(time, 50))),
    }
    run_for(energy_collector(host, collectors, state=str(tmp_path)), time, 100)
    with_rapl = energy_collector(host, collectors, state=str(tmp_path), source="rapl")
    run_for(with_rapl, time, 10)
    assert sum(samples(with_rapl, "node_energy_joules_total").values()) == pytest.approx(500)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 9}'])
def test_totals_restart_from_zero_if_the_state_file_is_damaged(
    host, time, tmp_path, caplog, content
):
    (tmp_path / "energy.json").write_text(content)
    collectors = {"rapl": FakeMeters(meter("rapl", constant_power(time, 100)))}
    collector = energy_collector(host, collectors, state=str(tmp_path))
    run_for(collector, time, 10)
    assert sum(samples(collector, "node_energy_joules_total").values()) == pytest.approx(1000)
    assert caplog.text.count("energy counters start from zero") == 1


def test_missing_key_in_the_state_file_causes_no_error(host, time, tmp_path):
    collectors = {
        "jobs": Jobs(time, [Job(1, 64, 64, time.clock(), float("inf"))]),
        "rapl": FakeMeters(meter("rapl", constant_power(time, 100))),
    }
    run_for(energy_collector(host, collectors, state=str(tmp_path)), time, 100)
    document = json.loads((tmp_path / "energy.json").read_text())
    for key in document:
        without = {each: value for each, value in document.items() if each != key}
        (tmp_path / "energy.json").write_text(json.dumps(without))
        collector = energy_collector(host, collectors, state=str(tmp_path))
        run_for(collector, time, 60)
        assert samples(collector, "energy_tick_errors_total") == {"": 0}


def test_value_of_another_type_causes_no_error(host, time, tmp_path):
    collectors = {
        "jobs": Jobs(time, [Job(1, 64, 64, time.clock(), float("inf"))]),
        "rapl": FakeMeters(meter("rapl", constant_power(time, 100))),
    }
    run_for(energy_collector(host, collectors, state=str(tmp_path)), time, 100)
    document = json.loads((tmp_path / "energy.json").read_text())
    deeper = {
        "since": document["since"] | {"meter": None},
        "node": [[0, *row[1:]] for row in document["node"]],
        "jobs": [row | {"joules": [[0, None, 1.0]]} for row in document["jobs"]],
    }
    changes = [*itertools.product(document, (0, "", [], [1], {}, True)), *deeper.items()]
    for key, value in changes:
        (tmp_path / "energy.json").write_text(json.dumps(document | {key: value}))
        collector = energy_collector(host, collectors, state=str(tmp_path))
        run_for(collector, time, 30)
        assert samples(collector, "energy_tick_errors_total") == {"": 0}, (key, value)
        assert samples(collector, "node_energy_joules_total")
        render(collector.collect())


def test_state_of_an_earlier_exporter_goes_on():
    """The job's and the GPU's rows had fewer values, and names had their labels."""
    name_row = ["slurm", "1", "alice", 'manager="slurm",jobid="1",user="alice"']
    gpu = ["GPU-1", 9.5, 500.0, 0, [[name_row, 1.0, 0.5]]]
    since = {
        "at": 10.0, "epoch": 1e9, "meter": [9.9, 1000.0, None, 7], "processors": [12.5, 4],
        "jobs": [[name_row, 5.0, 2.0, None]], "gpus": [gpu],
    }  # fmt: skip
    document = {
        "version": 1, "boot_id": "boot", "meter": "cray", "collectors": ["cray"],
        "idle": [20.0, 1e9], "gpu_idle": {"GPU-1": None},
        "jobs": [
            {"key": name_row[:3], "seen_at": 10.0, "joules": [["host", "active", 7.0]],
             "grams": {}},
        ],
        "node": [["host", "jobs", 7.0], ["host", "system", 3.0]],
        "metered_joules": 10.0, "overdrawn_joules": 0.0, "seconds_without_data": 0.0,
        "gpu_seconds_without_data": 0.0, "settled_until": 10.0, "since": since,
        "gpus_since": [gpu],
    }  # fmt: skip
    ledger = Ledger(IdlePower())
    assert checkpoint.restore(document, True, "cray", ledger)
    job = make_name("slurm", "1", "alice")
    assert ledger.jobs[job].joules == {("host", "active"): 7.0}
    assert ledger.node == {("host", "jobs"): 7.0, ("host", "system"): 3.0}
    assert ledger.last_snapshot == NodeSnapshot(
        10.0, 1e9, MeterReading(9.9, 1000.0, None, 7), 12.5, 4,
        {job: JobCpu(job, 5.0, 2.0, None)}, ledger.last_gpu_readings,
    )  # fmt: skip
    assert ledger.last_gpu_readings["GPU-1"].shares == (GpuEnergyShare(job, 1.0, 0.5),)


def test_unwritable_state_is_logged_once_and_the_old_file_removed(host, time, tmp_path, caplog):
    collectors = {"rapl": FakeMeters(meter("rapl", constant_power(time, 100)))}
    collector = energy_collector(host, collectors, state=str(tmp_path))
    run_for(collector, time, 10)
    (tmp_path / "energy.json.new").mkdir()
    run_for(collector, time, 30)
    assert not (tmp_path / "energy.json").exists()
    assert caplog.text.count("will start from zero") == 1
    assert sum(samples(collector, "node_energy_joules_total").values()) == pytest.approx(4000)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.data())
def test_arbitrary_state_is_restored_or_rejected(data):
    ledger = Ledger(IdlePower())
    job = JobCpu(name(1), 5.0, 2.0, None, None)
    gpu_share = GpuEnergyShare(name(1), 1.0)
    for at in (0.0, 10.0):
        ledger.book(
            NodeSnapshot(
                at,
                1e9 + at,
                MeterReading(at, joules=at * 100),
                at,
                4,
                {job.name: job},
                {"GPU-1": GpuEnergyReading("GPU-1", at, at * 50, 0, (gpu_share,))},
            )
        )
    with tempfile.TemporaryDirectory() as directory:
        file = StateFile(Host(state=directory), checkpoint.FILE, "energy counters")
        file.save(checkpoint.document("cray", ["cray"], ledger))
        document = file.load()
        restored = Ledger(IdlePower())
        assert checkpoint.restore(document, True, "cray", restored)
        assert restored.jobs.keys() == ledger.jobs.keys()
        assert (restored.node, restored.last_snapshot, restored.last_gpu_readings) == (
            ledger.node,
            ledger.last_snapshot,
            ledger.last_gpu_readings,
        )
        changed_key = data.draw(st.sampled_from(sorted(document.keys() - {"version"})))
        document[changed_key] = data.draw(json_values)
        Path(directory, "energy.json").write_text(json.dumps(document))
        with contextlib.suppress(ValueError):
            checkpoint.restore(file.load(), True, "cray", Ledger(IdlePower()))
