"""Runs whose supervisor was killed: what is left of them in cgroups ends here."""

import contextlib
import os
import signal
from pathlib import Path

from batchjob import runs as run_files
from batchjob.runs import RunFileError
from batchjob_cli.run import cgroup


def end_abandoned(runs: Path) -> None:
    """End the processes, and remove the cgroups, of this machine's runs that nobody watches.

    Only runs of this data directory: of another we cannot know.
    """
    for jobid, left in cgroup.existing().items():
        if _abandoned(runs / f"{jobid}.json"):
            with contextlib.suppress(OSError):  # another user's, in a directory that several share
                left.signal(signal.SIGKILL)
                left.remove()


def _abandoned(path: Path) -> bool:
    try:
        document = run_files.read(path)
    except (OSError, RunFileError):
        return False
    return document.get("node") == os.uname().nodename and not run_files.alive(document)
