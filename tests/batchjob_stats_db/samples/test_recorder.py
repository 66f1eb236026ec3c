"""The recorder: one pass for all jobs, from readings to files."""

import logging
import os
import shutil
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
from collectors.job_samples import samples_reader, take_samples
from collectors.jobs import collector as jobs_collector
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS
from tests.batchjob_stats_db.samples.open_files import close_files
from tests.helpers.waiting import until


class SimulatedNode:
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
        runs = samples.parent / "runs"
        return Recorder(
            partial(take_samples, lambda: self.readings(), accounts=self.accounts),
            samples,
            RecorderOptions(**options),
            self.clock,
            self.clock,
            runs,
        )


def record_passes(node, recorder, passes, seconds=5.0):
    for _ in range(passes):
        recorder.record()
        node.now += seconds


def read_samples(samples, jobid):
    found = []
    for path in files_of(folder_of(samples, jobid)):
        with SampleFile(path) as file:
            found += file.read()
            assert not file.damage
    return found


def test_quantities_of_the_exporter_are_in_the_samples():
    node = SimulatedNode("1")
    node.joules = 12.5
    (sample,) = take_samples(node.readings, accounts=node.accounts)
    names = {name.quantity for name in sample.values}
    assert {
        "page_faults_minor",
        "memory_working_set_bytes",
        "io_writes",
        "emissions_grams",
    } <= names
    assert sample.values[SampleKey("energy_joules", ("host", "active"))] == 12.5


@pytest.mark.parametrize(
    ("confirmed", "expected"),
    [(True, {"gpu_processes", "gpu_power_watts", "gpu_names"}), (False, {"gpu_processes"})],
)
def test_unconfirmed_gpu_contributes_no_measurements(confirmed, expected):
    node = SimulatedNode("1")
    unit = Unit(Gpu("nvidia", 0, "GPU-a", 0, "00000000:3B:00.0", "A100"))
    holding = Holding(node.jobs["1"], unit, "environment", None, 0,
                      confirmed=confirmed)  # fmt: skip
    (sample,) = take_samples(node.readings, lambda: [(holding, {POWER: 250.0})])
    assert {name.quantity for name in sample.values if name.quantity.startswith("gpu_")} == expected
    assert sample.values.get(SampleKey("gpu_names", ("A100",))) == (1 if confirmed else None)


def test_every_pass_samples_every_job(tmp_path):
    node = SimulatedNode("1", "2[1].pbs01")
    record_passes(node, node.recorder(tmp_path), 4)
    for jobid in node.jobs:
        found = read_samples(tmp_path, jobid)
        assert [each.get("cpu_user_seconds") for each in found] == [0, 10, 20, 30]


def test_energy_attributed_after_the_end_is_recorded(tmp_path):
    node = SimulatedNode("1")
    recorder = node.recorder(tmp_path)
    record_passes(node, recorder, 2)
    node.ended["1"] = node.now - 2
    record_passes(node, recorder, 1)
    node.joules = 70.0
    record_passes(node, recorder, 10)
    found = read_samples(tmp_path, "1")
    end = 1_775_300_008.0
    assert [each.values.get(END) for each in found] == [None, None, end, end]
    assert found[-1].get("energy_joules", "host", "active") == 70
    assert found[-1].get("memory_current_bytes") is None  # an ended job has none
    assert found[-1].get("memory_peak_bytes") == 8192
    (path,) = files_of(folder_of(tmp_path, "1"))
    assert path.stat().st_mode & 0o777 == 0o400  # packed


def test_ended_run_gets_the_totals_of_its_record(tmp_path):
    """The last pass missed its last seconds; the record has what the kernel reported then."""
    jobid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    node = SimulatedNode(jobid)
    node.jobs[jobid] = JobName("local", jobid, login(), NO_LABELS)
    recorder = node.recorder(tmp_path / "samples")
    record_passes(node, recorder, 2)
    node.ended[jobid] = node.now - 4
    record_passes(node, recorder, 1)
    run = Run(
        jobid=jobid, node="n", user=login(), uid=os.geteuid(), submit_time=1, start_time=1,
        state=JobState.COMPLETED, supervisor=current_process(), end_time=2, user_cpu_seconds=13.5,
        system_cpu_seconds=0.1, peak_memory_bytes=1 << 20, read_bytes=0, written_bytes=800 << 20,
    )  # fmt: skip
    write(create_directory(tmp_path, "runs"), run)
    record_passes(node, recorder, 1)
    *_, before, last = read_samples(tmp_path / "samples", jobid)
    assert before.get("cpu_user_seconds") == 12
    assert last.get("cpu_user_seconds") == 13.5
    assert last.get("cpu_system_seconds") == 3.0  # the larger value is kept
    assert (last.get("memory_peak_bytes"), last.get("process_io_written_bytes")) == (
        1 << 20,
        800 << 20,
    )


def test_restarted_job_gets_a_second_file(tmp_path):
    node = SimulatedNode("1")
    recorder = node.recorder(tmp_path)
    node.ended["1"] = node.now
    record_passes(node, recorder, 9)
    del node.ended["1"]
    record_passes(node, recorder, 2)
    assert len(files_of(folder_of(tmp_path, "1"))) == 2


def test_file_of_a_job_that_disappeared_is_completed(tmp_path):
    node = SimulatedNode("1", "2")
    recorder = node.recorder(tmp_path)
    record_passes(node, recorder, 2)
    del node.jobs["2"]
    record_passes(node, recorder, 2)
    with SampleFile(files_of(folder_of(tmp_path, "2"))[0]) as file:
        assert file.is_complete
        assert len(list(file.read())) == 2


def test_restart_after_a_kill_begins_a_new_file_and_packs_the_old(tmp_path):
    node = SimulatedNode("1")
    killed_recorder = node.recorder(tmp_path)
    record_passes(node, killed_recorder, 3)
    close_files(tmp_path)
    record_passes(node, node.recorder(tmp_path), 2)
    old, _ = files_of(folder_of(tmp_path, "1"))
    assert old.stat().st_mode & 0o777 == 0o400
    assert [each.get("cpu_user_seconds") for each in read_samples(tmp_path, "1")] == [
        0, 10, 20, 30, 40,
    ]  # fmt: skip


def test_long_job_has_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("batchjob_stats_db.samples.recorder.LONGEST_FILE", 600)
    node = SimulatedNode("1")
    record_passes(node, node.recorder(tmp_path), 200)
    assert len(files_of(folder_of(tmp_path, "1"))) > 2
    assert len(read_samples(tmp_path, "1")) == 200


def test_samples_of_running_jobs_are_never_deleted(tmp_path):
    node = SimulatedNode("1")
    recorder = node.recorder(tmp_path, keep=60.0, most=1)
    record_passes(node, recorder, 3, seconds=700.0)
    assert read_samples(tmp_path, "1")
    del node.jobs["1"]
    record_passes(node, recorder, 3, seconds=700.0)
    assert not folders(tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", mount_point],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("mounting needs root")
    yield mount_point
    subprocess.run(["umount", "-l", mount_point], check=True)


def test_full_disk_is_logged_once_and_recording_resumes(small_disk, caplog):
    node = SimulatedNode(*map(str, range(5)))
    recorder = node.recorder(small_disk)
    record_passes(node, recorder, 3)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(1 << 20))
    record_passes(node, recorder, 1500)
    messages = [
        text for text in map(logging.LogRecord.getMessage, caplog.records) if "write" in text
    ]
    assert len(messages) == 1
    assert "cannot write samples" in messages[0]
    assert "No space left" in messages[0]
    ballast.unlink()
    record_passes(node, recorder, 3)
    for jobid in node.jobs:
        found = read_samples(small_disk, jobid)
        assert len(found) >= 6
        assert found[-1].at == node.now - 5
    recorder.start()
    recorder.stop()


def test_directory_that_cannot_be_created_is_logged(tmp_path, caplog):
    (tmp_path / "samples").write_text("a file")
    node = SimulatedNode("1")
    record_passes(node, node.recorder(tmp_path / "samples"), 3)
    messages = {record.getMessage() for record in caplog.records}
    assert any("cannot write samples" in each for each in messages)


@pytest.mark.parametrize("passes", [1, 20])  # before and after its values have settled
def test_deleted_job_is_no_error(tmp_path, caplog, passes):
    node = SimulatedNode("1", "2")
    recorder = node.recorder(tmp_path)
    record_passes(node, recorder, 2)
    node.ended["1"] = node.now - 2
    record_passes(node, recorder, 1)
    shutil.rmtree(folder_of(tmp_path, "1"))
    record_passes(node, recorder, passes)
    del node.jobs["1"]
    record_passes(node, recorder, 2)
    assert caplog.messages == []
    assert not folder_of(tmp_path, "1").exists()
    assert len(read_samples(tmp_path, "2")) > passes


def test_failed_reading_skips_only_its_pass(tmp_path, caplog):
    node = SimulatedNode("1")
    recorder = node.recorder(tmp_path)
    record_passes(node, recorder, 1)
    readings, node.readings = node.readings, lambda: 1 / 0
    record_passes(node, recorder, 3)
    node.readings = readings
    record_passes(node, recorder, 1)
    assert len(read_samples(tmp_path, "1")) == 2
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "samples: cannot read jobs: division by zero"
    ]


def test_samples_of_a_recorded_machine(tree, tmp_path):
    host = tree("slurm-24.11-v2-r2-a")
    collector = jobs_collector.JobsCollector(host, jobs_collector.JobsOptions())
    collector.update()
    try:
        recorder = Recorder(
            samples_reader([collector]),
            tmp_path,
            RecorderOptions(),
            host.clock,
        )
        recorder.record()
    finally:
        collector.stop()
    assert len(folders(tmp_path)) >= 5
    for folder in folders(tmp_path):
        (sample,) = read_samples(tmp_path, folder.name)
        assert sample.get("cpu_user_seconds") is not None
        assert sample.get("memory_current_bytes") is not None


def test_stop_takes_a_last_sample(tmp_path):
    node = SimulatedNode("1")
    recorder = Recorder(
        partial(take_samples, node.readings), tmp_path, RecorderOptions(interval=0.05), node.clock
    )
    threads = threading.active_count()
    recorder.start()
    until(lambda: len(read_samples(tmp_path, "1")) >= 3, "three samples", 30)
    node.now += 50
    recorder.stop()
    assert threading.active_count() == threads
    assert read_samples(tmp_path, "1")[-1].get("cpu_user_seconds") == 100


def test_stop_waits_for_the_last_samples_on_a_slow_disk(tmp_path):
    is_first, last_taken = threading.Event(), threading.Event()

    def take():
        if is_first.is_set():
            time.sleep(2.5)
            last_taken.set()
        is_first.set()
        return []

    recorder = Recorder(take, tmp_path, RecorderOptions(interval=3600.0))
    recorder.start()
    until(is_first.is_set)
    recorder.stop()
    assert last_taken.is_set()
