"""Local runs as files: `<data>/runs/<uuid>.json`, one for each, written anew at each change.

Whoever starts a run writes its file, and whoever records runs reads it; nothing else passes
between them. A file is replaced as a whole, so that a reader never sees half of one.
"""

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.states import JobState

VERSION = 1
TOMBSTONE = ".deleted"
"""`<uuid>.deleted`, empty: the run was deleted, and whoever keeps a copy is to delete it too."""
_LARGEST = 1_000_000  # bytes of a file
_BLOCK, _ROOM = 4096, 512  # filled up with blanks, a file has room for its end on a full disk


class RunFileError(ValueError):
    """Not the file of a run."""


class Supervisor(NamedTuple):
    """The process that watches over a run and will write its end.

    A process id is used again, so its start (field 22 of /proc/<pid>/stat, in ticks since the
    boot) and the boot (/proc/sys/kernel/random/boot_id) go with it.
    """

    pid: int
    start_ticks: int
    boot_id: str


class Run(NamedTuple):
    """A local run; times in epoch seconds, sizes in bytes. None: not known, or not yet.

    `by` says what kind it is: a command of `batchjob run`, or a piece of work in a program's own
    process (`track`, `celery`), which nobody but that program can end.
    """

    jobid: str  # a UUID
    node: str
    user: str
    uid: int
    submit_time: int
    start_time: int | None
    state: JobState
    supervisor: Supervisor
    name: str = ""
    group: str = ""
    submit_line: str = ""  # the command, as one would type it
    work_dir: str = ""
    stdout_path: str = ""
    allocated_cpus: int | None = None
    allocated_memory_bytes: int | None = None
    allocated_gpus: int | None = None
    time_limit_seconds: int | None = None
    end_time: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    cancelled_by: str = ""
    by: str = "run"
    state_word: str = ""  # finer than the state: success, failed, timeout, error, retry
    tool: str = ""
    parameters: str = ""  # a JSON object
    error: str = ""  # what went wrong, in words
    record_id: str = ""  # the id that another system has for it, such as Celery's task id
    restarts: int | None = None
    wall_seconds: float | None = None

    @property
    def duration_seconds(self) -> float | None:
        """From start to end; None while it has not ended."""
        if self.wall_seconds is not None:
            return self.wall_seconds
        if self.start_time is None or self.end_time is None:
            return None
        return max(0, self.end_time - self.start_time)

    @property
    def cpu_seconds(self) -> float | None:
        """User and system time."""
        if self.user_cpu_seconds is None or self.system_cpu_seconds is None:
            return None
        return self.user_cpu_seconds + self.system_cpu_seconds

    @property
    def status(self) -> str:
        """`running`, `success`, `failed`, `timeout`, `error`, `cancelled` ..."""
        return self.state_word or _STATUS.get(self.state, self.state.lower())

    user_cpu_seconds: float | None = None
    system_cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


_STATUS = {JobState.COMPLETED: "success"}


def write(directory: Path, run: Run, durable: bool = True) -> Path:
    """Write or replace the run's file; raises OSError.

    On a full disk the file is written anew in its place, where there is room for it. `durable`:
    wait until the disk has it.
    """
    path = directory / f"{run.jobid}.json"
    data = _encoded(run)
    try:
        _replace(path, data, durable)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
            os.fsync(file.fileno())
    return path


def _encoded(run: Run) -> bytes:
    document = {key: value for key, value in run._asdict().items() if value not in (None, "")}
    document["supervisor"] = run.supervisor._asdict()
    data = json.dumps({"version": VERSION} | document).encode()
    size = -(-(len(data) + _ROOM) // _BLOCK) * _BLOCK
    return data.ljust(size - 1) + b"\n"


def _replace(path: Path, data: bytes, durable: bool) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:  # whatever stops us, no temporary file may stay
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, Any]:
    """The document of a run's file; raises OSError or RunFileError."""
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    try:
        document = json.loads(data) if len(data) <= _LARGEST else None
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{path.name}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise RunFileError(f"{path.name}: expected a run of version {VERSION}")
    return document


def decoded(document: Mapping[str, Any]) -> Run:
    """The run of a document; raises RunFileError. Fields of later versions are left out."""
    known = {key: value for key, value in document.items() if key in Run._fields}
    try:
        known["state"] = JobState(document["state"])
        known["supervisor"] = Supervisor(**document["supervisor"])
        known.setdefault("start_time", None)
        run = Run(**known)
    except (KeyError, ValueError, TypeError) as error:
        raise RunFileError(f"{document.get('jobid')}: not a run: {error}") from error
    if not isinstance(run.submit_time, int) or not isinstance(run.start_time, int | None):
        raise RunFileError(f"{run.jobid}: not a run: expected times in epoch seconds")
    return run


def alive(document: dict[str, Any], procfs: str = "/proc") -> bool:
    """Whether the process that would write the run's end still lives, on this machine."""
    watcher = document.get("supervisor")
    if not isinstance(watcher, dict):
        return False
    try:
        boot = Path(procfs, "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(procfs, str(int(watcher["pid"])), "stat").read_bytes()
        ticks = int(stat.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False
    return boot == watcher.get("boot_id") and ticks == watcher.get("start_ticks")


def this_process(procfs: str = "/proc") -> Supervisor:
    """The calling process as a supervisor; raises OSError."""
    boot = Path(procfs, "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    stat = Path(procfs, "self/stat").read_bytes()
    return Supervisor(os.getpid(), int(stat.rpartition(b")")[2].split()[19]), boot)
