"""The watch over a job's processes."""

import os
import subprocess
import threading

from collectors.jobs.cgroups.directory import DescriptorBudget
from collectors.jobs.processes.exits import ExitWatcher


def test_the_end_of_a_process_is_told():
    told = threading.Event()
    watcher = ExitWatcher(lambda job: told.set(), lambda job: False, DescriptorBudget(10))
    with subprocess.Popen(["sleep", "60"]) as process:
        watcher.follow("job 1", [process.pid])
        process.terminate()
        assert told.wait(10)
    watcher.stop()


def test_a_job_without_processes_to_follow_is_read_again_until_it_has_ended():
    """slurmstepd goes on in its cgroup, and removes it the moment it leaves."""
    readings, ended = [], threading.Event()

    def read_again(job):
        readings.append(job)
        if len(readings) == 3:
            ended.set()
        return not ended.is_set()

    watcher = ExitWatcher(lambda job: None, read_again, DescriptorBudget(10))
    with subprocess.Popen(["sleep", "60"]) as left, subprocess.Popen(["sleep", "60"]) as first:
        watcher.follow("job 1", [left.pid, first.pid])
        first.terminate()
        first.wait()
        assert not readings  # one of its processes is there
        left.terminate()
        assert ended.wait(10)
    watcher.stop()
    assert readings == ["job 1"] * 3


def test_nothing_is_followed_after_the_end_of_the_watch():
    watcher = ExitWatcher(lambda job: None, lambda job: False, DescriptorBudget(10))
    watcher.follow("job 1", [os.getpid()])
    watcher.stop()
    for thread in threading.enumerate():
        if thread.name == "exits":
            thread.join(10)
    watcher.follow("job 2", [os.getpid()])
