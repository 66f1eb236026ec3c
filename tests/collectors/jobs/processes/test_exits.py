"""The watch over a job's processes."""

import os
import subprocess
import threading

from collectors.jobs.cgroups.directory import Descriptors
from collectors.jobs.processes.exits import ExitWatcher


def test_the_end_of_a_process_is_told():
    told = threading.Event()
    watcher = ExitWatcher(lambda job: told.set(), Descriptors(10))
    with subprocess.Popen(["sleep", "60"]) as process:
        watcher.follow("job 1", [process.pid])
        process.terminate()
        assert told.wait(10)
    watcher.stop()


def test_nothing_is_followed_after_the_end_of_the_watch():
    watcher = ExitWatcher(lambda job: None, Descriptors(10))
    watcher.follow("job 1", [os.getpid()])
    watcher.stop()
    for thread in threading.enumerate():
        if thread.name == "exits":
            thread.join(10)
    watcher.follow("job 2", [os.getpid()])
