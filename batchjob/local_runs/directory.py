"""The data directory: where one machine's own runs, logs, samples and database lie.

    runs/<uuid>.json              one file for each run (runs.py)
    logs/<uuid>/                  what the runs wrote
    samples/<jobid>/              measurements over time

It is its owner's alone (mode 0700). Where an administrator wants one for everybody, `runs` and
`logs` are made by hand with mode 1777, as /tmp is; the files in them are their writers' alone.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

VARIABLE = "BATCHJOB_DATA"
RUNS, LOGS, SAMPLES = "runs", "logs", "samples"
LOCAL = "local"
"""The cluster that this machine's own runs belong to."""


def data_directory(given: str = "", environment: Mapping[str, str] = os.environ) -> Path:
    """What was asked for, else $BATCHJOB_DATA, else `batchjob` in the user's state directory.

    That is $XDG_STATE_HOME or ~/.local/state (XDG Base Directory Specification 0.8, where a
    relative path is to be ignored).
    """
    chosen = given or environment.get(VARIABLE, "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    state = environment.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return base / "batchjob"


def prepare(directory: Path, *parts: str) -> Path:
    """Make the data directory, and a directory in it, where they are not there; raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for part in parts:
        directory /= part
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextmanager
def plain_file(path: Path) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a file that another user may have put there; raises OSError.

    Only a regular file is opened: a symbolic link would let its author read with our rights, and a
    FIFO would make us wait for him. Owner and mode are those of the file that is open, whatever
    stands at the path by then.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "expected a regular file, found a symbolic link"
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "expected a regular file", str(path))
        yield file, status
