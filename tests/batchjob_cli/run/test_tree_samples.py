"""A run without a cgroup writes the samples of its processes itself."""

import sys

import pytest

from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.folder import files_of, folder_of

WORK = """
import subprocess, sys, time
held = bytearray(64 << 20)
subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)
with open("written", "wb", buffering=0) as file:
    file.write(bytes(1 << 20))
until = time.process_time() + 1.5
while time.process_time() < until: pass
"""


def samples_of(batchjob, jobid):
    (path,) = files_of(folder_of(batchjob.data / "samples", jobid))
    with SampleFile(path) as file:
        return list(file.read()), file.header


def test_a_run_without_a_cgroup_has_samples_from_its_start_to_its_end(batchjob):
    assert batchjob("run", "--cgroup=never", "--", sys.executable, "-c", WORK).returncode == 0
    record = batchjob.record()
    samples, header = samples_of(batchjob, record["jobid"])
    assert (header.jobid, header.user, header.node) == (
        record["jobid"],
        record["user"],
        record["node"],
    )
    first, second, *_, last = samples
    assert first.at - record["start_time"] < 1 < second.at - record["start_time"]
    assert first.get("cpu_user_seconds") <= second.get("cpu_user_seconds")
    assert second.get("memory_current_bytes") > 64 << 20
    assert last.get("end_time_seconds") == pytest.approx(record["end_time"], abs=0.01)
    used = last.get("cpu_user_seconds") + last.get("cpu_system_seconds")
    assert used == pytest.approx(
        record["user_cpu_seconds"] + record["system_cpu_seconds"], abs=0.01
    )
    assert used > 1.5
    assert last.get("process_io_written_bytes") == record["written_bytes"] >= 1 << 20


# Its child's time is lost when it ends: the kernel keeps it for parents that wait.
FORGETFUL = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    until = time.process_time() + 1.5
    while time.process_time() < until: pass
    os._exit(0)
time.sleep(6.5)
"""


def test_cpu_time_never_falls(batchjob):
    batchjob("run", "--cgroup=never", "--", sys.executable, "-c", FORGETFUL)
    samples, _ = samples_of(batchjob, batchjob.record()["jobid"])
    modes = ("cpu_user_seconds", "cpu_system_seconds")
    used = [[sample.get(mode) for sample in samples] for mode in modes]
    assert used == [sorted(mode) for mode in used]
    assert sum(mode[-1] for mode in used) > 0.5


def test_a_short_run_has_its_totals(batchjob):
    batchjob("run", "--cgroup=never", "--", "true")
    record = batchjob.record()
    samples, _ = samples_of(batchjob, record["jobid"])
    assert len(samples) == 2
    assert samples[-1].get("end_time_seconds") == pytest.approx(record["end_time"], abs=0.01)


def test_a_run_goes_on_without_samples_if_they_cannot_be_written(batchjob):
    batchjob.data.mkdir()
    (batchjob.data / "samples").write_text("not a directory")
    assert batchjob("run", "--cgroup=never", "--", "echo", "done").stdout == "done\n"
