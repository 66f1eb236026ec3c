"""The watcher of process exits."""

import os
import subprocess
import threading
from threading import Semaphore

from collectors.jobs.processes.exits import ExitWatcher
from tests.helpers.waiting import scaled


def test_process_exit_is_reported():
    exited = threading.Event()
    watcher = ExitWatcher(lambda job: exited.set(), lambda job: False, Semaphore(10))
    with subprocess.Popen(["sleep", "60"]) as process:
        watcher.follow("job 1", [process.pid])
        process.terminate()
        assert exited.wait(scaled(10))
    watcher.stop()


def test_job_without_processes_is_read_until_it_has_ended():
    """slurmstepd stays in the cgroup, and removes it when it exits."""
    readings, ended = [], threading.Event()

    def read_again(job):
        readings.append(job)
        if len(readings) == 3:
            ended.set()
        return not ended.is_set()

    watcher = ExitWatcher(lambda job: None, read_again, Semaphore(10))
    with subprocess.Popen(["sleep", "60"]) as second, subprocess.Popen(["sleep", "60"]) as first:
        watcher.follow("job 1", [second.pid, first.pid])
        first.terminate()
        first.wait()
        assert not readings  # one of its processes still runs
        second.terminate()
        assert ended.wait(scaled(10))
    watcher.stop()
    assert readings == ["job 1"] * 3


def test_stopped_watcher_ignores_new_processes():
    watcher = ExitWatcher(lambda job: None, lambda job: False, Semaphore(10))
    watcher.follow("job 1", [os.getpid()])
    watcher.stop()
    for thread in threading.enumerate():
        if thread.name == "exits":
            thread.join(scaled(10))
    watcher.follow("job 2", [os.getpid()])
