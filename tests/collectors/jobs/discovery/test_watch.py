"""Watches in the directories of jobs, in a real cgroup v1 hierarchy of this machine.

Other file systems remove the watch on a directory with the directory; cgroupfs does not.
"""

import os
from pathlib import Path

import pytest

from collectors.host import Host
from collectors.jobs.collector import JobsCollector, JobsOptions
from tests.collectors.jobs.nodes import inotify_watch_count
from tests.helpers.waiting import until

PIDS_HIERARCHY = Path("/sys/fs/cgroup/pids")

pytestmark = pytest.mark.skipif(
    not os.access(PIDS_HIERARCHY / "cgroup.procs", os.W_OK),
    reason="no cgroup v1 hierarchy that can be written",
)


def make_directories(job, *names):
    for name in names:
        (job / name).mkdir(parents=True)


def remove_directories(top):
    for each in sorted([*top.rglob("*/"), top], reverse=True):
        each.rmdir()


@pytest.fixture
def job(tmp_path):
    """The directory of job 7 with the directory of one step."""
    top = PIDS_HIERARCHY / f"test_watch_{os.getpid()}"  # without jobs of the machine itself
    (tmp_path / "pids").symlink_to(top)
    directory = top / "slurm/uid_1000/job_7"
    make_directories(directory, "step_batch/task_0")
    yield directory
    remove_directories(top)


@pytest.fixture
def collector(tmp_path, job):
    """A collector whose watcher runs and that knows the job."""
    collector = JobsCollector(Host(cgroupfs=str(tmp_path)), JobsOptions())
    collector.update()
    collector.watcher.start()
    assert [each.layout_match.jobid for each in collector.table.all()] == ["7"]
    yield collector
    collector.stop()


@pytest.mark.usefixtures("collector")
def test_removed_steps_leave_no_watches(job):
    watches_before = inotify_watch_count()
    for _ in range(3):
        make_directories(job, "step_0/user/task_0")
        until(lambda: inotify_watch_count() == watches_before + 3)
        remove_directories(job / "step_0")
        until(lambda: inotify_watch_count() == watches_before)


def test_requeued_job_leaves_no_watches(collector, job):
    watches_before = inotify_watch_count()
    for _ in range(3):
        first_run = collector.table.all()[0]
        remove_directories(job)
        make_directories(job, "step_batch/task_0")
        until(lambda previous=first_run: collector.table.all() != [previous])
        until(lambda: inotify_watch_count() == watches_before)
