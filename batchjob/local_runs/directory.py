"""The data directory: runs, logs, samples and the database of one machine.

    runs/<uuid>.json              one file for each run (record.py)
    logs/<uuid>/                  output of the runs
    samples/<jobid>/              measurements over time

It belongs to its owner alone (mode 0700). To share one among all users, an administrator creates
`runs` and `logs` with mode 1777, like /tmp; the files in them belong to those who wrote them.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from batchjob.runtime.logins import expand_home

VARIABLE = "BATCHJOB_DATA"
RUNS, LOGS, SAMPLES = "runs", "logs", "samples"
LOCAL = "local"
"""The cluster that this machine's own runs belong to."""


class NoDataDirectory(FileNotFoundError):
    """The data directory would be in a home directory that does not exist."""


def data_directory(path: str = "", environment: Mapping[str, str] = os.environ) -> Path:
    """The given directory, else $BATCHJOB_DATA, else `batchjob` in the user's state directory.

    That is $XDG_STATE_HOME or ~/.local/state (XDG Base Directory Specification 0.8, which says to
    ignore a relative path). Raises NoDataDirectory.
    """
    state = environment.get("XDG_STATE_HOME", "")
    base = state if state.startswith("/") else "~/.local/state"
    directory = path or environment.get(VARIABLE, "") or f"{base}/batchjob"
    try:
        return expand_home(directory).absolute()
    except FileNotFoundError as error:
        message = f"{error.strerror}; expected --data or ${VARIABLE}"
        raise NoDataDirectory(error.errno, message, directory) from None


def create_directory(directory: Path, *parts: str) -> Path:
    """Create the data directory and a directory in it if they do not exist; raises OSError."""
    _mkdir(directory)
    for part in parts:
        directory /= part
        _mkdir(directory)
    return directory


def _mkdir(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "expected a directory", str(directory)) from None
