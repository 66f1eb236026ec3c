"""A maximum number of simultaneous runs: others wait, and start in the order of their arrival.

`<data>/runs/.queue-<uid>/` has a file for each place, locked by the run that has it, and a ticket
for each waiting run, locked as well. A lock ends with its process, however that ends.
"""

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

from batchjob.runtime.user_files import create_file, open_lock

_PLACE, _TICKET = "place-", "ticket-"


class ForeignQueueError(Exception):
    """Another user has created the directory of this user's queue; the text names it."""


class QueuedRun:
    """A run in the queue; to be closed when the run has ended."""

    def __init__(self, runs: Path, jobid: str, max_runs: int) -> None:
        """Queue up; raises OSError, ForeignQueueError."""
        self._directory = _own_directory(runs)
        self._max_runs = max_runs
        self._name = f"{_TICKET}{time.time_ns():020d}-{jobid}"
        self._place: int | None = None  # a file descriptor
        temporary = self._directory / f".{jobid}"
        self._ticket = create_file(temporary)
        fcntl.flock(self._ticket, fcntl.LOCK_EX)
        # Renamed only now, so that others always find it locked.
        temporary.rename(self._directory / self._name)

    def close(self) -> None:
        """Leave the queue, or give up the place."""
        self._leave_queue()
        if self._place is not None:
            os.close(self._place)
            self._place = None

    @property
    def wait_reason(self) -> str:
        """Why the run waits; "" if it has a place, which it takes if possible. Raises OSError."""
        if self._place is None and self._is_first():
            self._place = self._acquire_place()
            if self._place is not None:
                self._leave_queue()
        if self._place is not None:
            return ""
        return f"at most {self._max_runs} run{'s' if self._max_runs > 1 else ''} at once"

    def _is_first(self) -> bool:
        """Whether no other run has waited longer; tickets of ended runs are removed."""
        names = (name for name in os.listdir(self._directory) if name.startswith(_TICKET))
        for name in sorted(names):
            if name == self._name:
                break
            if _is_locked(self._directory / name):
                return False
        return True

    def _acquire_place(self) -> int | None:
        for number in range(self._max_runs):
            path = self._directory / f"{_PLACE}{number}"
            descriptor = open_lock(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                return descriptor
        return None

    def _leave_queue(self) -> None:
        if self._ticket >= 0:
            with contextlib.suppress(OSError):
                (self._directory / self._name).unlink()
            os.close(self._ticket)
            self._ticket = -1


def _own_directory(runs: Path) -> Path:
    """The user's own directory; in a shared `runs`, another user may have created any name.

    Symbolic links of other users are not followed: with fs.protected_symlinks, the kernel refuses
    it.
    """
    directory = runs / f".queue-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    foreign = status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if foreign or not stat.S_ISDIR(status.st_mode):
        raise ForeignQueueError(
            f"{directory}: created by uid {status.st_uid}, or writable by other users"
        )
    return directory


def _is_locked(path: Path) -> bool:
    """Whether the ticket's run is alive; otherwise the ticket is removed."""
    try:
        descriptor = open_lock(path, create=False)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return False
    finally:
        os.close(descriptor)
