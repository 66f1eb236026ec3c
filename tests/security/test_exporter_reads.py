"""What a job's processes show of themselves fills nobody's memory."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.measure import resident_bytes
from tests.e2e import exporter
from tests.e2e.processes import until

SOMEBODY = 31002 if os.geteuid() == 0 else os.geteuid()
HOSTILE = Path(__file__).with_name("long_environment.py")


@contextmanager
def long_environment(megabytes):
    """A process of an ordinary user whose /proc/<pid>/environ and cmdline are that long."""
    argv = [sys.executable, HOSTILE, str(megabytes), str(SOMEBODY)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        said = process.stdout.readline().strip()
        if said in map(os.strerror, (errno.EPERM, errno.EINVAL)):
            pytest.skip(f"prctl(PR_SET_MM_MAP): {said}")
        assert said == "ready"
        yield process.pid
        process.stdin.close()


@contextmanager
def job_of(pids, cgroupfs):
    """An exporter that takes these processes for a Slurm job."""
    task = cgroupfs / "system.slice/slurmstepd.scope/job_7/step_batch/user/task_0"
    task.mkdir(parents=True)
    (cgroupfs / "cgroup.controllers").write_text("cpu memory\n")
    (task / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    (task.parents[2] / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    flags = ("--collector.disable-defaults", "--collector.jobs", f"--path.cgroupfs={cgroupfs}")
    with exporter.running(*flags, "--collector.jobs.metrics=process-io") as target:
        yield target


def test_an_environment_of_gigabytes_costs_the_exporter_nothing(tmp_path):
    with (
        long_environment(1000) as hostile,
        subprocess.Popen(["sleep", "60"]) as honest,
        job_of([hostile, honest.pid], tmp_path / "cgroup") as target,
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
