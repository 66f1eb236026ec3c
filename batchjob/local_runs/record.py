"""Local runs as files: `<data>/runs/<uuid>.json`, one for each run, rewritten at each change.

These files are the only interface between the programs that start runs and those that record them.
A file is replaced as a whole, so that a reader never sees half of one.

Several users may share the directory. A file is valid for its owner alone: the user of a run is the
uid of its file, and a file that others may write to is ignored.
"""

import errno
import json
import os
import re
import signal
import stat
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.logins import login, login_of
from batchjob.runtime.user_files import open_regular_file, replace_file
from batchjob.schedulers.states import JobState

VERSION = 1
TOMBSTONE = ".deleted"
"""`<uuid>.deleted`, empty: the run was deleted, and whoever keeps a copy is to delete it too."""
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MAX_FILE_BYTES = 1_000_000  # maximum file size in bytes
# Files are padded with blanks to whole blocks: the end of a run can be recorded on a full disk.
_BLOCK_BYTES, _RESERVED_BYTES = 4096, 512


class RunFileError(ValueError):
    """The file is not the record of a run."""


class SupervisorProcess(NamedTuple):
    """The process that supervises a run and writes its end.

    Process ids are reused, so its start time (field 22 of /proc/<pid>/stat, in ticks since boot)
    and the boot (/proc/sys/kernel/random/boot_id) are recorded with it.
    """

    pid: int
    start_ticks: int
    boot_id: str


class Run(NamedTuple):
    """A local run; times in epoch seconds with milliseconds, sizes in bytes.

    None: unknown, or not yet known. Allocated resources are the limits in force. `by` is the kind
    of run: a command of `batchjob run`, or work inside a program's own process (`track`, `celery`),
    which only that program can end.
    """

    jobid: str  # a UUID
    node: str
    user: str
    uid: int
    submit_time: float
    start_time: float | None
    state: JobState
    supervisor: SupervisorProcess
    name: str = ""
    group: str = ""
    submit_line: str = ""  # the command as typed in a shell
    work_dir: str = ""
    stdout_path: str = ""
    allocated_cpus: float | None = None
    allocated_memory_bytes: int | None = None
    allocated_gpus: int | None = None
    time_limit_seconds: float | None = None
    io_limit_bytes_per_second: int | None = None  # applies to reads and writes separately
    cpu_list: str = ""  # the CPUs it is bound to, such as 0-3,8
    gpu_list: str = ""  # the driver's indices of the GPUs that it holds, such as 0-1
    reason: str = ""  # why it is waiting; "None" once a run that waited has started
    end_time: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    requested_by: str = ""  # the person who asked for it over the API
    cancelled_by: str = ""
    by: str = "run"
    state_word: str = ""  # more specific than the state: success, failed, timeout, error, retry
    tool: str = ""
    parameters: str = ""  # a JSON object
    error: str = ""  # error message
    result_type: str = ""  # type of the return value; "" if nothing was returned
    record_id: str = ""  # the run's own id, or its id in another system, such as the Celery task id
    workflow: str = ""  # the group of work it belongs to, such as a Celery chain
    restarts: int | None = None
    wall_seconds: float | None = None

    @property
    def duration_seconds(self) -> float | None:
        """From start to end; None while the run has not ended."""
        if self.wall_seconds is not None:
            return self.wall_seconds
        if self.start_time is None or self.end_time is None:
            return None
        return max(0.0, round(self.end_time - self.start_time, 6))

    @property
    def has_result(self) -> bool:
        return bool(self.result_type)

    @property
    def cpu_seconds(self) -> float | None:
        if self.user_cpu_seconds is None or self.system_cpu_seconds is None:
            return None
        return self.user_cpu_seconds + self.system_cpu_seconds

    @property
    def status(self) -> str:
        """`running`, `success`, `failed`, `timeout`, `error`, `cancelled` ..."""
        return self.state_word or _STATUS_OF_STATE.get(self.state, self.state.lower())

    user_cpu_seconds: float | None = None
    system_cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    read_bytes: int | None = None  # read from storage by its processes
    written_bytes: int | None = None  # written to storage


_STATUS_OF_STATE = {JobState.COMPLETED: "success"}


def now() -> float:
    return round(time.time(), 3)


def new_run(jobid: str, state: JobState, supervisor: SupervisorProcess, **values: Any) -> Run:
    """The record of a run that the user of this process submits now; one that runs starts now.

    `values`: more fields.
    """
    submitted = now()
    try:
        work_dir = str(Path.cwd())
    except OSError:  # the directory has been removed
        work_dir = ""
    started = submitted if state is JobState.RUNNING else None
    whose = os.uname().nodename, login(), os.geteuid()
    return Run(jobid, *whose, submitted, started, state, supervisor, work_dir=work_dir, **values)


def write(directory: Path, run: Run, durable: bool = True) -> Path:
    """Write or replace the run's file; raises OSError.

    On a full disk the file is rewritten in place if there is room for that. `durable`: wait until
    the data is on disk.
    """
    path = directory / f"{run.jobid}.json"
    data = _encode(run)
    try:
        replace_file(path, data, durable=durable)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        with open_regular_file(path, (os.geteuid(),), writable=True) as (file, _):
            file.write(data)
            file.truncate()
            os.fsync(file.fileno())
    return path


def _encode(run: Run) -> bytes:
    document = {key: value for key, value in run._asdict().items() if value not in (None, "")}
    document["supervisor"] = run.supervisor._asdict()
    data = json.dumps({"version": VERSION} | document).encode()
    size = -(-(len(data) + _RESERVED_BYTES) // _BLOCK_BYTES) * _BLOCK_BYTES
    return data.ljust(size - 1) + b"\n"


def read(path: Path, owners: Collection[int] | None = None) -> dict[str, Any]:
    """Read the file of a run; raises OSError or RunFileError.

    `uid` and `user` are those of the file's owner, whatever the file says; only root may write for
    others. `owners`: the uids whose files are read at all; None: anybody's.
    """
    if not RUN_ID.fullmatch(path.stem):
        raise RunFileError(f"{path.name}: expected a file named after a run's id")
    with open_regular_file(path, owners) as (file, status):
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # anybody may have written it
            raise RunFileError(f"{path.name}: expected a file that only its owner may write to")
        data = file.read(_MAX_FILE_BYTES + 1)
    try:
        document = parse_json(data) if len(data) <= _MAX_FILE_BYTES else None
    except ValueError as error:
        raise RunFileError(f"{path.name}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise RunFileError(f"{path.name}: expected a run of version {VERSION}")
    _check_owner(path, document, status)
    return document | {"user": login_of(document["uid"])}


def _check_owner(path: Path, document: Mapping[str, Any], status: os.stat_result) -> None:
    """Raise RunFileError for claims that the file's owner may not make."""
    owner, uid = status.st_uid, document.get("uid")
    if type(uid) is not int or uid < 0 or owner not in (0, uid):
        raise RunFileError(f"{path.name}: uid {owner} wrote a run of uid {uid}")
    if document.get("jobid") != path.stem:
        raise RunFileError(f"{path.name}: jobid: expected the file's name")


def decode_run(document: Mapping[str, Any]) -> Run:
    """Decode a run from a document; raises RunFileError. Fields of later versions are ignored."""
    fields = {key: value for key, value in document.items() if key in Run._fields}
    try:
        fields["state"] = JobState(document["state"])
        fields["supervisor"] = SupervisorProcess(**document["supervisor"])
        fields.setdefault("start_time", None)
        run = Run(**fields)
    except (KeyError, ValueError, TypeError) as error:
        raise RunFileError(f"{document.get('jobid')}: not a run: {error}") from error
    for part, types in ((run, _FIELD_TYPES), (run.supervisor, _SUPERVISOR_FIELD_TYPES)):
        for name, value in part._asdict().items():
            if not _has_type(value, types[name]):
                raise RunFileError(f"{run.jobid}: not a run: {name}: unexpected {value!r:.40}")
    return run


_FIELD_TYPES, _SUPERVISOR_FIELD_TYPES = get_type_hints(Run), get_type_hints(SupervisorProcess)
_INTEGER_LIMIT = 2**63  # exceeds the integers of databases


def _has_type(value: Any, type_hint: Any) -> bool:
    """Whether a field has a value of its type; numbers must be at least 0."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float) and not 0 <= value < _INTEGER_LIMIT:
        return False
    return isinstance(value, type_hint | int if type_hint in (float, float | None) else type_hint)


def is_supervisor_alive(document: object, procfs: str = "/proc") -> bool:
    """Whether the process that would write the run's end is alive on this machine.

    The document may be anything that a user's file contains.
    """
    supervisor = document.get("supervisor") if isinstance(document, dict) else None
    if not isinstance(supervisor, dict) or type(pid := supervisor.get("pid")) is not int:
        return False
    try:
        return _start_of(pid, procfs) == (supervisor.get("start_ticks"), supervisor.get("boot_id"))
    except (OSError, ValueError, IndexError):
        return False


def signal_supervisor(run: Run, number: signal.Signals, procfs: str = "/proc") -> bool:
    """Send a signal to the supervisor of a run; False if it has ended.

    A record may name any process: the signal is sent only to a process of the run's own user, and
    not to another process that has reused the pid. Raises PermissionError.
    """
    try:
        process = os.pidfd_open(run.supervisor.pid)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    try:
        if not is_supervisor_alive({"supervisor": run.supervisor._asdict()}, procfs):
            return False
        if _read_uids(run.supervisor.pid, procfs) != {run.uid}:
            raise PermissionError(errno.EPERM, f"process {run.supervisor.pid} is another user's")
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True


def _read_uids(pid: int, procfs: str) -> set[int]:
    """Real, effective, saved and file system uids (proc(5))."""
    try:
        lines = Path(procfs, str(pid), "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = next((line for line in lines.splitlines() if line.startswith("Uid:")), "")
    return set(map(int, found.split()[1:]))


def current_process(procfs: str = "/proc") -> SupervisorProcess:
    """The calling process as a supervisor; raises OSError."""
    return SupervisorProcess(os.getpid(), *_start_of("self", procfs))


def _start_of(pid: int | str, procfs: str) -> tuple[int, str]:
    """When a process began, in ticks since boot, and the boot."""
    boot = Path(procfs, "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    stat = Path(procfs, str(pid), "stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[19]), boot
