"""Answers of NVML, recorded by `python -m benchmarks.gpu record`, and read again.

Records of real drivers go to tests/fixtures/nvml/; each is replayed and must give a plausible
reading. The recorder itself is tested against the stand-in: what it records reads the same.
"""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import gpu as recorder
from collectors.gpu import nvml
from collectors.gpu.allocation import AllocationContext
from collectors.gpu.devices import GpuTable
from collectors.gpu.holders import build_map
from collectors.gpu.metrics import (
    ENERGY,
    LOW_UTILIZATION,
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    POWER_LIMIT,
    THROTTLED,
    UTILIZATION,
)
from collectors.jobs.view import JobHolder, make_name

RECORDS = sorted((Path(__file__).parents[2] / "fixtures" / "nvml").glob("*.txt"))


@pytest.fixture
def pynvml(fake_nvml):
    import pynvml

    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


def all_readings(pynvml):
    count = pynvml.nvmlDeviceGetCount()
    return [nvml.read(pynvml, index, 0, Counter()) for index in range(count)]


def test_recording_gives_the_same_readings(fake_nvml, pynvml, capsys):
    fake_nvml.add_gpus(2)
    fake_nvml.create_mig_instances(1, {0: {}, 3: {"gpu_instance": 5}})
    fake_nvml.set({"gpu0.process0": "10 5000 COMPUTE 4294967295 4294967295 40"})
    fake_nvml.set({"gpu1.process0": "11 6000 COMPUTE 5 0 0"})
    before = all_readings(pynvml)
    fake_nvml.path.write_text(recorder.record(pynvml))
    assert all_readings(pynvml) == before


def test_benchmark_reads_every_gpu(fake_nvml, pynvml, capsys):
    fake_nvml.add_gpus(2)
    assert recorder.main(["measure", "2"]) == 0
    assert capsys.readouterr().out.count("ms CPU per reading") == 2
    assert recorder.main(["guess"]) == 2


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_recorded_driver_gives_plausible_readings(fake_nvml, pynvml, path):
    fake_nvml.path.write_text(path.read_text())
    found = all_readings(pynvml)
    assert found
    for reading in found:
        values = reading.values
        assert reading.gpu.uuid.startswith("GPU-")
        assert 0 <= values.get(UTILIZATION, 0) <= 1
        assert 0 <= values.get(MEMORY_USED, 0) <= values.get(MEMORY_TOTAL, 0)
        assert 0 <= values.get(POWER, 0) <= 2 * values.get(POWER_LIMIT, 1000)


@pytest.fixture
def replay(fake_nvml):
    """Answer with a record from now on."""

    def answer(record):
        (path,) = [each for each in RECORDS if each.stem == record]
        fake_nvml.path.write_text(path.read_text())

    return answer


@pytest.mark.parametrize(
    ("record", "utilization", "processes"), [("idle", 0.0, 0), ("busy", 0.5, 1), ("shared", 1.0, 2)]
)
def test_recorded_h100_shows_its_known_load(replay, pynvml, record, utilization, processes):
    """Nothing; matrix products half of each second; two processes with as much as they get."""
    replay(f"h100_driver_580_{record}")
    errors: Counter[tuple[str, str]] = Counter()
    reading = nvml.read(pynvml, 0, 0, errors)
    assert not errors
    assert reading.values[UTILIZATION] == pytest.approx(utilization, abs=0.06)
    assert len(reading.processes) == processes
    assert reading.values.keys() >= {ENERGY, POWER, MEMORY_USED, *THROTTLED.values()}


def map_of_jobs(reading, *pids, previous=None):
    """The map of jobs with one process each."""
    jobs = [
        JobHolder(make_name("slurm", str(number), "alice"), 1000, (pid,), (), ())
        for number, pid in enumerate(pids)
    ]
    context = AllocationContext(GpuTable([reading.gpu]), {}, None, "gpu01")
    return build_map(jobs, context, {reading.gpu.uuid: reading}, previous=previous)


def test_clients_of_mps_have_no_utilization_of_their_own(replay, pynvml):
    """They kept the GPU busy for 100 and 50 % of the time; the driver tells the server's use."""
    replay("h200_driver_580_mps")
    (reading,) = all_readings(pynvml)
    holdings = map_of_jobs(reading, 641, 642).holdings
    assert [each.memory_bytes for each in holdings] == [2690646016, 3764387840]
    assert [each.utilization for each in holdings] == [None, None]


def test_jobs_on_one_gpu_are_not_told_apart_by_the_samples_of_the_driver(replay, pynvml):
    """Both were busy all the time: the driver gives each sample whole to one of them.

    It also gives a new process the samples of one that ended, so that no value can be trusted.
    """
    replay("h100_driver_580_shared")
    (reading,) = all_readings(pynvml)
    holdings = map_of_jobs(reading, *(each.pid for each in reading.processes)).holdings
    assert [each.utilization for each in holdings] == [None, None]


def test_memory_of_a_forked_child_remains_its_jobs_after_the_parent_has_ended(replay, pynvml):
    """The driver lists the parent's pid until the child ends."""
    replay("h200_driver_580_deadpid")
    (reading,) = all_readings(pynvml)
    both = map_of_jobs(reading, 679)
    parent_ended = map_of_jobs(reading, 687, previous=both)
    (holding,) = parent_ended.holdings
    assert (holding.processes, holding.memory_bytes) == (1, 9133096960)
    assert map_of_jobs(reading._replace(processes=()), 687, previous=parent_ended).holdings == ()
    assert map_of_jobs(reading, 687).holdings == (), "its pid was never seen alive"


def test_pid_of_a_process_that_ended_is_given_to_the_job_that_has_it_now(replay, pynvml):
    replay("h200_driver_580_deadpid")
    (reading,) = all_readings(pynvml)
    before = map_of_jobs(reading, 679, 1)
    (holding,) = map_of_jobs(reading, 687, 679, previous=before).holdings
    assert holding.job.jobid == "1"


def test_idleness_is_not_throttling(replay, pynvml):
    replay("h200_driver_580_idle")
    (reading,) = all_readings(pynvml)
    assert {reading.values[each] for each in THROTTLED.values()} == {0}
    assert reading.values[LOW_UTILIZATION] > 1, "seconds"
