"""Cleans up after runs whose supervisor was killed: their processes and cgroups."""

import contextlib
import os
import signal
from pathlib import Path

from batchjob.local_runs import record as run_files
from batchjob.local_runs.record import RunFileError
from batchjob_cli.run import cgroup


def end_abandoned(runs: Path) -> None:
    """End the processes, and remove the cgroups, of this machine's unsupervised runs.

    Only runs of this data directory: others are unknown. In a directory that several users share, a
    record may name any cgroup; only cgroups and processes of its owner are affected.
    """
    for jobid, abandoned in cgroup.find_existing().items():
        owner = _abandoned_owner(runs / f"{jobid}.json")
        if owner is not None and abandoned.owners() == {owner}:
            with contextlib.suppress(OSError):  # we may not have permission
                abandoned.signal(signal.SIGKILL)
                abandoned.remove()


def _abandoned_owner(path: Path) -> int | None:
    """The uid of an unsupervised run; None for others."""
    try:
        document = run_files.read(path)
    except (OSError, RunFileError):
        return None
    if document.get("node") != os.uname().nodename or run_files.is_supervisor_alive(document):
        return None
    return int(document["uid"])
