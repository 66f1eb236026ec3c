"""Runs whose supervisor was killed: what is left of them in cgroups ends here."""

import contextlib
import os
import signal
from pathlib import Path

from batchjob.local_runs import record as run_files
from batchjob.local_runs.record import RunFileError
from batchjob_cli.run import cgroup


def end_abandoned(runs: Path) -> None:
    """End the processes, and remove the cgroups, of this machine's runs that nobody watches.

    Only runs of this data directory: of another we cannot know. In a directory that several users
    share, a record may name any cgroup; it concerns its owner's cgroups and processes alone.
    """
    for jobid, left in cgroup.existing().items():
        owner = _abandoned_owner(runs / f"{jobid}.json")
        if owner is not None and left.owners() == {owner}:
            with contextlib.suppress(OSError):  # not ours to end
                left.signal(signal.SIGKILL)
                left.remove()


def _abandoned_owner(path: Path) -> int | None:
    """The uid of a run that nobody watches; None for others."""
    try:
        document = run_files.read(path)
    except (OSError, RunFileError):
        return None
    if document.get("node") != os.uname().nodename or run_files.alive(document):
        return None
    return int(document["uid"])
