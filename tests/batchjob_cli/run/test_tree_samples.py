"""A run without a cgroup writes the samples of its processes itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import batchjob_cli
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


def test_a_run_without_a_cgroup_has_samples_from_its_start_to_its_end(batchjob, tmp_path):
    command = ("run", "--cgroup=never", "--", sys.executable, "-c", WORK)
    assert batchjob(*command, cwd=tmp_path).returncode == 0
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


# Its child's time and bytes are lost when it ends: the kernel keeps them for parents that wait.
FORGETFUL = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
ended, living = os.pipe()
if os.fork() == 0:
    with open("written", "wb", buffering=0) as file:
        file.write(bytes(1 << 20))
    until = time.process_time() + 1.5
    while time.process_time() < until: pass
    time.sleep(5)
    os._exit(0)
os.close(living)
os.read(ended, 1)
"""


def test_cpu_time_and_bytes_never_fall(batchjob, tmp_path):
    batchjob("run", "--cgroup=never", "--", sys.executable, "-c", FORGETFUL, cwd=tmp_path)
    samples, _ = samples_of(batchjob, batchjob.record()["jobid"])
    user, system, written = (
        [sample.get(name) for sample in samples]
        for name in ("cpu_user_seconds", "cpu_system_seconds", "process_io_written_bytes")
    )
    assert (user, system, written) == (sorted(user), sorted(system), sorted(written))
    assert user[-1] + system[-1] > 0.5
    assert written[-1] >= 1 << 20


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


def test_commands_that_are_installed_alone_run_without_samples(tmp_path):
    """As on machines to which only what a run needs is copied."""
    for name in ("batchjob", "batchjob_cli", "collectors"):
        (tmp_path / name).symlink_to(Path(batchjob_cli.__file__).parents[1] / name)
    argv = (sys.executable, "-S", "-m", "batchjob_cli", "run", "--cgroup=never", "--data=data")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*argv, "--", "echo", "done"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
    assert not (tmp_path / "data/samples").exists()
