"""A helper that runs, and cgroups of this machine that look like no scheduler's."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.kernel.answers import Helper
from tests.helpers.waiting import until

TREES = {"v1": Path("/sys/fs/cgroup/cpuacct"), "v2": Path("/sys/fs/cgroup/unified")}
IN_CGROUP = "import os, sys\nopen(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n"


def skip_without_rights():
    """Skip with the reason why this machine's kernel gives no numbers."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    problems = Helper().answer({"check": True})["problems"]
    if any(problems.values()):
        pytest.skip(str(problems))


def v2_root():
    """Where cgroup v2 is mounted."""
    alone = TREES["v2"].parent
    return alone if (alone / "cgroup.controllers").exists() else TREES["v2"]


@contextlib.contextmanager
def job_cgroups(version, count=1):
    """Directories of jobs at level 3, with a step in each."""
    base = v2_root() if version == "v2" else TREES[version]
    if not base.is_dir():
        pytest.skip(f"{base} is not mounted")
    top = base / f"kernel-test-{os.getpid()}"
    jobs = [top / "user_1000" / f"case_{number}" for number in range(count)]
    try:
        for job in jobs:
            (job / "step").mkdir(parents=True)
        yield jobs
    finally:
        for job in jobs:
            for directory in (job / "step", job):
                until(lambda each=directory: _removed(each), "the cgroup is empty")
        for directory in (top / "user_1000", top):
            directory.rmdir()


def _removed(directory):
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not directory.exists()


def run_in(job, program, *arguments, **options):
    """A Python program whose processes are those of the job."""
    command = [sys.executable, "-c", IN_CGROUP + program, str(job / "step"), *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **options)


def directories(jobs):
    """As the exporter gives them to its client."""
    return [(str(job), job.stat().st_ino) for job in jobs]
