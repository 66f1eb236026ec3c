"""Huge environments and command lines of processes do not fill the memory of the exporter."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.measure import resident_bytes
from tests.e2e import exporter
from tests.helpers.waiting import until

ORDINARY_UID = 31002 if os.geteuid() == 0 else os.geteuid()
PROGRAM = Path(__file__).with_name("long_environment.py")


@contextmanager
def long_environment_process(megabytes):
    """Run a process of an ordinary user whose /proc/<pid>/environ and cmdline are that long."""
    argv = [sys.executable, PROGRAM, str(megabytes), str(ORDINARY_UID)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        first_line = process.stdout.readline().strip()
        if first_line in map(os.strerror, (errno.EPERM, errno.EINVAL)):
            pytest.skip(f"prctl(PR_SET_MM_MAP): {first_line}")
        assert first_line == "ready"
        yield process.pid
        process.stdin.close()


@contextmanager
def exporter_with_job(pids, cgroupfs):
    """Run an exporter that sees these processes as a Slurm job."""
    task = cgroupfs / "system.slice/slurmstepd.scope/job_7/step_batch/user/task_0"
    task.mkdir(parents=True)
    (cgroupfs / "cgroup.controllers").write_text("cpu memory\n")
    (task / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    (task.parents[2] / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    flags = ("--collector.disable-defaults", "--collector.jobs", f"--path.cgroupfs={cgroupfs}")
    with exporter.running(*flags, "--collector.jobs.metrics=process-io") as target:
        yield target


def test_huge_environment_does_not_grow_exporter_memory(tmp_path):
    with (
        long_environment_process(1000) as hostile,
        subprocess.Popen(["sleep", "60"]) as honest,
        exporter_with_job([hostile, honest.pid], tmp_path / "cgroup") as target,
    ):
        try:
            with open(f"/proc/{hostile}/environ", "rb") as file:
                assert file.read(1 << 20) == bytes(1 << 20)
            assert resident_bytes(hostile) < 30e6
            until(
                lambda: target.scrape().series("batchjob_job_info", jobid="7"),
                "the job has a name",
                timeout=30,
            )
            for _ in range(3):
                assert target.scrape().value("batchjob_job_process_io_read_characters_total")
            assert resident_bytes(target.pid, peak=True) < 60e6
        finally:
            honest.kill()
