"""The recorder: one pass for all jobs, from readings to files."""

import logging
import os
import subprocess
import threading
import time
from functools import partial

import pytest

from batchjob.local_runs.directory import create_directory
from batchjob.local_runs.record import Run, current_process, write
from batchjob.quantities.reading import CgroupReading, DeviceIO, job_reading
from batchjob.quantities.sample import END, SampleKey
from batchjob.runtime.logins import login
from batchjob.schedulers.states import JobState
from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.folder import files_of, folder_of, folders
from batchjob_stats_db.samples.recorder import Recorder, RecorderOptions
from collectors.energy.ledger import EnergyAccounts, JobAccount
from collectors.gpu.devices import Gpu, Unit
from collectors.gpu.holders import Holding
from collectors.gpu.metrics import POWER
from collectors.job_samples import SampleSources, find_sources, take_samples
from collectors.jobs import collector as jobs_collector
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS
from tests.batchjob_stats_db.samples.killed import close_files


class Node:
    """Jobs that compute, and a clock."""

    def __init__(self, *jobids):
        self.now = 1_775_300_000.0
        self.jobs = {jobid: JobName("slurm", jobid, "alice", NO_LABELS) for jobid in jobids}
        self.ended = {}
        self.joules = 0.0

    def clock(self):
        return self.now

    def readings(self):
        return [(job, self._reading(self.ended.get(jobid))) for jobid, job in self.jobs.items()]

    def _reading(self, ended_at):
        seconds = (ended_at or self.now) - 1_775_300_000.0
        cgroup = CgroupReading(
            cpu_user_seconds=2 * seconds, cpu_system_seconds=0.5 * seconds,
            memory_current=4096.0, memory_inactive_file=1024.0, memory_peak=8192.0,
            page_faults=100.0, page_faults_major=1.0, io={"sda": DeviceIO(1, 2, 3, 4)},
        )  # fmt: skip
        return job_reading(1_775_300_000.0, ended_at, cgroup)

    def accounts(self):
        return EnergyAccounts(
            tuple(
                JobAccount(job, {("host", "active"): self.joules}, {"owid": 0.5})
                for job in self.jobs.values()
            )
        )

    def recorder(self, samples, **options):
        sources = SampleSources(lambda: self.readings(), accounts=self.accounts)
        runs = samples.parent / "runs"
        return Recorder(
            partial(take_samples, sources),
            samples,
            RecorderOptions(**options),
            self.clock,
            self.clock,
            runs,
        )


def pass_by(node, recorder, passes, seconds=5.0):
    for _ in range(passes):
        recorder.record()
        node.now += seconds


def samples_of(samples, jobid):
    found = []
    for path in files_of(folder_of(samples, jobid)):
        with SampleFile(path) as file:
            found += file.read()
            assert not file.damage
    return found


def test_every_number_of_the_exporter_has_a_place_in_samples():
    node = Node("1")
    node.joules = 12.5
    (taken,) = take_samples(SampleSources(node.readings, accounts=node.accounts))
    names = {name.quantity for name in taken.values}
    assert {
        "page_faults_minor",
        "memory_working_set_bytes",
        "io_writes",
        "emissions_grams",
    } <= names
    assert taken.values[SampleKey("energy_joules", ("host", "active"))] == 12.5


@pytest.mark.parametrize(("confirmed", "told"), [(True, {"gpu_processes", "gpu_power_watts"}),
                                                  (False, {"gpu_processes"})])  # fmt: skip
def test_a_gpu_that_only_the_environment_of_a_job_names_tells_it_nothing(confirmed, told):
    node = Node("1")
    unit = Unit(Gpu("nvidia", 0, "GPU-a", 0, "00000000:3B:00.0", "A100"))
    holding = Holding(node.jobs["1"], unit, "environment", None, 0,
                      confirmed=confirmed)  # fmt: skip
    sources = SampleSources(node.readings, holdings=lambda: [(holding, {POWER: 250.0})])
    (taken,) = take_samples(sources)
    assert {name.quantity for name in taken.values if name.quantity.startswith("gpu_")} == told


def test_each_interval_each_job_has_a_sample(tmp_path):
    node = Node("1", "2[1].pbs01")
    pass_by(node, node.recorder(tmp_path), 4)
    for jobid in node.jobs:
        found = samples_of(tmp_path, jobid)
        assert [each.get("cpu_user_seconds") for each in found] == [0, 10, 20, 30]


def test_a_job_ends_and_its_energy_is_booked_later(tmp_path):
    node = Node("1")
    recorder = node.recorder(tmp_path)
    pass_by(node, recorder, 2)
    node.ended["1"] = node.now - 2
    pass_by(node, recorder, 1)
    node.joules = 70.0
    pass_by(node, recorder, 10)
    found = samples_of(tmp_path, "1")
    end = 1_775_300_008.0
    assert [each.values.get(END) for each in found] == [None, None, end, end]
    assert found[-1].get("energy_joules", "host", "active") == 70
    assert found[-1].get("memory_current_bytes") is None  # it has none any more
    assert found[-1].get("memory_peak_bytes") == 8192
    (path,) = files_of(folder_of(tmp_path, "1"))
    assert path.stat().st_mode & 0o777 == 0o400  # packed


def test_an_ended_run_has_the_totals_of_its_record(tmp_path):
    """Our last look was from before its last seconds; the record has what the kernel told then."""
    jobid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    node = Node(jobid)
    node.jobs[jobid] = JobName("local", jobid, login(), NO_LABELS)
    recorder = node.recorder(tmp_path / "samples")
    pass_by(node, recorder, 2)
    node.ended[jobid] = node.now - 4
    pass_by(node, recorder, 1)
    run = Run(
        jobid=jobid, node="n", user=login(), uid=os.geteuid(), submit_time=1, start_time=1,
        state=JobState.COMPLETED, supervisor=current_process(), end_time=2, user_cpu_seconds=13.5,
        system_cpu_seconds=0.1, peak_memory_bytes=1 << 20, read_bytes=0, written_bytes=800 << 20,
    )  # fmt: skip
    write(create_directory(tmp_path, "runs"), run)
    pass_by(node, recorder, 1)
    *_, before, last = samples_of(tmp_path / "samples", jobid)
    assert before.get("cpu_user_seconds") == 12
    assert last.get("cpu_user_seconds") == 13.5
    assert last.get("cpu_system_seconds") == 3.0  # the larger one
    assert (last.get("memory_peak_bytes"), last.get("process_io_written_bytes")) == (
        1 << 20,
        800 << 20,
    )


def test_a_job_that_lives_again_has_a_second_file(tmp_path):
    node = Node("1")
    recorder = node.recorder(tmp_path)
    node.ended["1"] = node.now
    pass_by(node, recorder, 9)
    del node.ended["1"]
    pass_by(node, recorder, 2)
    assert len(files_of(folder_of(tmp_path, "1"))) == 2


def test_a_job_that_is_no_longer_there_is_ended(tmp_path):
    node = Node("1", "2")
    recorder = node.recorder(tmp_path)
    pass_by(node, recorder, 2)
    del node.jobs["2"]
    pass_by(node, recorder, 2)
    with SampleFile(files_of(folder_of(tmp_path, "2"))[0]) as file:
        assert file.is_complete
        assert len(list(file.read())) == 2


def test_after_a_kill_a_new_file_begins_and_the_old_one_is_packed(tmp_path):
    node = Node("1")
    killed = node.recorder(tmp_path)
    pass_by(node, killed, 3)
    close_files(tmp_path)
    pass_by(node, node.recorder(tmp_path), 2)
    old, _ = files_of(folder_of(tmp_path, "1"))
    assert old.stat().st_mode & 0o777 == 0o400
    assert [each.get("cpu_user_seconds") for each in samples_of(tmp_path, "1")] == [
        0, 10, 20, 30, 40,
    ]  # fmt: skip


def test_a_long_job_has_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("batchjob_stats_db.samples.recorder.LONGEST_FILE", 600)
    node = Node("1")
    pass_by(node, node.recorder(tmp_path), 200)
    assert len(files_of(folder_of(tmp_path, "1"))) > 2
    assert len(samples_of(tmp_path, "1")) == 200


def test_the_running_are_never_deleted(tmp_path):
    node = Node("1")
    recorder = node.recorder(tmp_path, keep=60.0, most=1)
    pass_by(node, recorder, 3, seconds=700.0)
    assert samples_of(tmp_path, "1")
    del node.jobs["1"]
    pass_by(node, recorder, 3, seconds=700.0)
    assert not folders(tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    where = tmp_path / "disk"
    where.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", where], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting needs root")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk_is_said_once_and_nothing_is_lost(small_disk, caplog):
    node = Node(*map(str, range(5)))
    recorder = node.recorder(small_disk)
    pass_by(node, recorder, 3)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(1 << 20))
    pass_by(node, recorder, 1500)
    said = [text for text in map(logging.LogRecord.getMessage, caplog.records) if "write" in text]
    assert len(said) == 1
    assert "cannot write samples" in said[0]
    assert "No space left" in said[0]
    ballast.unlink()
    pass_by(node, recorder, 3)
    for jobid in node.jobs:
        found = samples_of(small_disk, jobid)
        assert len(found) >= 6
        assert found[-1].at == node.now - 5
    recorder.start()
    recorder.stop()


def test_a_directory_that_cannot_be_made(tmp_path, caplog):
    (tmp_path / "samples").write_text("a file")
    node = Node("1")
    pass_by(node, node.recorder(tmp_path / "samples"), 3)
    said = {record.getMessage() for record in caplog.records}
    assert any("cannot write samples" in each for each in said)


def test_a_reading_that_fails_costs_its_pass_alone(tmp_path, caplog):
    node = Node("1")
    recorder = node.recorder(tmp_path)
    pass_by(node, recorder, 1)
    readings, node.readings = node.readings, lambda: 1 / 0
    pass_by(node, recorder, 3)
    node.readings = readings
    pass_by(node, recorder, 1)
    assert len(samples_of(tmp_path, "1")) == 2
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "samples: cannot read jobs: division by zero"
    ]


def test_a_recorded_machine(tree, tmp_path):
    host = tree("slurm-24.11-v2-r2-a")
    collector = jobs_collector.build(host, jobs_collector.JobsOptions(), {})
    collector.update()
    try:
        recorder = Recorder(
            partial(take_samples, find_sources([collector])),
            tmp_path,
            RecorderOptions(),
            host.clock,
        )
        recorder.record()
    finally:
        collector.stop()
    assert len(folders(tmp_path)) >= 5
    for folder in folders(tmp_path):
        (sample,) = samples_of(tmp_path, folder.name)
        assert sample.get("cpu_user_seconds") is not None
        assert sample.get("memory_current_bytes") is not None


def test_its_thread_ends_with_a_last_sample(tmp_path):
    node = Node("1")
    sources = SampleSources(node.readings)
    recorder = Recorder(
        partial(take_samples, sources), tmp_path, RecorderOptions(interval=0.05), node.clock
    )
    threads = threading.active_count()
    recorder.start()
    deadline = time.monotonic() + 30
    while len(samples_of(tmp_path, "1")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    node.now += 50
    recorder.stop()
    assert threading.active_count() == threads
    assert samples_of(tmp_path, "1")[-1].get("cpu_user_seconds") == 100
