"""A maximum of simultaneous runs, or of what they have: others wait in the order of their arrival.

A queue is a directory in `<data>/runs`, of a user or of a person who starts runs over the API. Each
run has a file in it, locked as long as the run lives, however it ends: first it is `delayed-<id>`,
then a `ticket-<time>-<id>`, and when it starts a `place-<id>`, which tells what the run has.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batchjob.runtime.formatting import format_count
from batchjob.runtime.formatting import size as format_size
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.settings import option
from batchjob.runtime.user_files import ForeignFileError, create_file, open_lock, open_regular_file
from batchjob.runtime.values import duration, integer, number, size
from batchjob_cli.run.limits import RunLimits

_DELAYED, _TICKET, _PLACE = "delayed-", "ticket-", "place-"
_MUTEX = ".mutex"  # locked while a run counts the others and takes its place
_MAX_BYTES = 1000


@dataclass(frozen=True)
class PersonLimits:
    """What a person may have. None: nothing is said; 0: no limit."""

    max_runs: int | None = option(None, "Runs at once; further ones wait.", parse=integer)
    max_waiting: int | None = option(None, "Waiting runs; others are refused.", parse=integer)
    max_cpus: float | None = option(None, "CPUs of all running runs; others wait.", parse=number)
    max_memory: int | None = option(None, "Memory of all running runs; others wait.", parse=size)
    max_time_limit: float | None = option(None, "Time limit of a run.", parse=duration)


class QueuedRun:
    """A run in a queue; to be closed when the run has ended."""

    def __init__(
        self, runs: Path, jobid: str, person: str, limits: PersonLimits, has: RunLimits
    ) -> None:
        """`person`: who starts them over the API, "" for the user, in any way. `limits`: what the
        runs of the queue may have together. `has`: what the run will have.

        Raises OSError; ForeignFileError if the queue is another user's.
        """
        self._directory = _own_directory(runs, person)
        self._person = person
        self._limits = limits
        self._has = (has.cpus or 0.0, has.memory_bytes or 0)
        self._jobid = jobid
        self._path = self._directory / f".{jobid}"
        self._lock = create_file(self._path)
        os.write(self._lock, json.dumps(self._has).encode())
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._rename(_DELAYED)  # only now, so that others always find it locked

    def close(self) -> None:
        """Leave the queue, or give up the place."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._lock)

    @property
    def wait_reason(self) -> str:
        """Why the run waits; "" if it has a place, which it takes if possible. Raises OSError."""
        if self._path.name.startswith(_DELAYED):
            self._rename(f"{_TICKET}{time.time_ns():020d}-")
        if self._path.name.startswith(_PLACE):
            return ""
        with _locked(self._directory / _MUTEX):
            shortage = self._shortage()
            is_first = min(self._names_of_others(_TICKET), default="~") > self._path.name
            if is_first and not shortage:
                self._rename(_PLACE)
                return ""
        person = f" for {self._person}" if self._person else ""
        return f"{shortage or 'other runs have waited longer'}{person}"

    @property
    def refusal(self) -> str:
        """Why the run may not even wait; "" if it may."""
        most = self._limits.max_waiting
        waiting = [*self._names_of_others(_DELAYED), *self._names_of_others(_TICKET)]
        if not most or len(waiting) < most:
            return ""
        runs = format_count(most, "waiting run")
        return f"remote.max-waiting: {self._person} may have {runs}, and has as many"

    def _shortage(self) -> str:
        """The limit that keeps the run from starting; "": none."""
        limits = self._limits
        running = [_read_has(self._directory / name) for name in self._names_of_others(_PLACE)]
        cpus, memory = (sum(column) for column in zip(self._has, *running, strict=True))
        if limits.max_runs and len(running) >= limits.max_runs:
            return f"at most {format_count(limits.max_runs, 'run')} at once"
        if limits.max_cpus and cpus > limits.max_cpus:
            return f"at most {format_count(limits.max_cpus, 'CPU')} at once"
        if limits.max_memory and memory > limits.max_memory:
            return f"at most {format_size(limits.max_memory)} of memory at once"
        return ""

    def _names_of_others(self, prefix: str) -> list[str]:
        """The files of other runs that live; those of ended ones are removed."""
        return [
            name
            for name in os.listdir(self._directory)
            if name.startswith(prefix)
            and name != self._path.name
            and _is_locked(self._directory / name)
        ]

    def _rename(self, prefix: str) -> None:
        path = self._directory / f"{prefix}{self._jobid}"
        self._path.rename(path)
        self._path = path


def _own_directory(runs: Path, person: str) -> Path:
    """The user's own directory; in a shared `runs`, another user may have created any name.

    Symbolic links of other users are not followed: with fs.protected_symlinks, the kernel refuses
    it.
    """
    part = f"-{hashlib.sha256(person.encode()).hexdigest()[:16]}" if person else ""
    directory = runs / f".queue-{os.geteuid()}{part}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    foreign = status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if foreign or not stat.S_ISDIR(status.st_mode):
        text = f"created by uid {status.st_uid}, or writable by other users"
        raise ForeignFileError(errno.EPERM, text, str(directory))
    return directory


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_has(path: Path) -> tuple[float, int]:
    """The CPUs and the bytes of memory of a run; zeros if it has just ended."""
    try:
        with open_regular_file(path) as (file, _):
            cpus, memory = parse_json(file.read(_MAX_BYTES))
    except (OSError, ValueError, TypeError):
        return 0.0, 0
    return cpus, memory


def _is_locked(path: Path) -> bool:
    """Whether the file's run is alive; otherwise the file is removed."""
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
