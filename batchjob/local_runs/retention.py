"""Retention of runs and their output."""

import contextlib
import os
import shutil
import time
from pathlib import Path

from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import LOGS, RUNS
from batchjob.local_runs.record import RunFileError
from batchjob.runtime.user_files import is_own_file, list_directory, touch_own

_DAY = 86400.0
_BLOCK_BYTES = 512  # unit of st_blocks (stat(2))

# Maximum ages in seconds since the last change, and bytes on the disk of all runs of one user.
_RECORDS_SECONDS, _LOGS_SECONDS, _LOGS_BYTES = 365 * _DAY, 30 * _DAY, 2 << 30

_Log = tuple[float, int, Path]
"""When the output of a run was changed, its bytes and its directory."""


def sweep(
    data: Path,
    *,
    records: float = _RECORDS_SECONDS,
    logs: float = _LOGS_SECONDS,
    logs_bytes: int = _LOGS_BYTES,
    now: float | None = None,
) -> None:
    """Delete what has expired, and the oldest logs of users whose logs are too large.

    Root sweeps for all users, others their own. Unfinished runs are kept, and so is what cannot be
    deleted. Database rows have a retention of their own.
    """
    at = time.time() if now is None else now
    for path, status in _sweepable(data / RUNS):
        jobid = path.name.partition(".")[0]
        expired = at - status.st_ctime > records
        if expired and not _is_running(data, jobid, status.st_uid, at - records):
            with contextlib.suppress(OSError):
                path.unlink()
    of_owner: dict[int, list[_Log]] = {}
    for path, status in _sweepable(data / LOGS):
        own = [each for _, each in _list(path) if each.st_uid == status.st_uid]
        changed = max(each.st_ctime for each in (status, *own))
        size_bytes = sum(each.st_blocks * _BLOCK_BYTES for each in own)
        of_owner.setdefault(status.st_uid, []).append((changed, size_bytes, path))
    for owner, own_logs in of_owner.items():
        bytes_left = logs_bytes
        for changed, size_bytes, path in sorted(own_logs, reverse=True):
            bytes_left -= size_bytes
            expired = bytes_left < 0 or at - changed > logs
            if expired and not _is_running(data, path.name, owner, at - records):
                _delete(path)


def _delete(path: Path) -> None:
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)  # follows no links


def _sweepable(directory: Path) -> list[tuple[Path, os.stat_result]]:
    """What this user may delete; the kernel keeps a sticky directory's files for their owners."""
    user = os.geteuid()
    return [(path, status) for path, status in _list(directory) if user in (0, status.st_uid)]


def _list(directory: Path) -> list[tuple[Path, os.stat_result]]:
    try:
        return list_directory(directory)
    except OSError:
        return []


def sweep_daily(data: Path, *, records: float = _RECORDS_SECONDS) -> None:
    """Sweep, unless this user did so less than a day ago."""
    last_sweep = data / RUNS / f".swept-{os.geteuid()}"
    if is_own_file(last_sweep) and time.time() - last_sweep.lstat().st_mtime <= _DAY:
        return
    with contextlib.suppress(OSError):  # if another user's file has the name: sweep each time
        touch_own(last_sweep)
    sweep(data, records=records)


def _is_running(data: Path, jobid: str, owner: int, oldest: float) -> bool:
    """Whether a user's run goes on; one of another node is believed until its record expires."""
    path = data / RUNS / f"{jobid}.json"
    try:
        document = run_files.read(path, (0, owner))
        live = run_files.decode_run(document).state.is_live
        if live and document.get("node") != os.uname().nodename:
            return path.lstat().st_ctime >= oldest
    except (OSError, RunFileError):
        return False
    return live and run_files.is_supervisor_alive(document)
