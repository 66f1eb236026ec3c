"""Retention of runs and their output."""

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import LOGS, RUNS
from batchjob.local_runs.record import RunFileError

_DAY = 86400.0


class RunRetention(NamedTuple):
    """Maximum ages in seconds since the last change."""

    records: float = 365 * _DAY
    logs: float = 30 * _DAY
    logs_bytes: int = 2 << 30  # of all runs together


def sweep(data: Path, retention: RunRetention, now: float | None = None) -> None:
    """Delete what has expired, and the oldest logs if all logs together are too large.

    Unfinished runs are kept, and so is what cannot be deleted. Database rows have a retention of
    their own.
    """
    at = time.time() if now is None else now
    for path in _list_directory(data / RUNS):
        jobid = path.name.partition(".")[0]
        if at - _modified_at(path) > retention.records and not _is_running(data, jobid):
            with contextlib.suppress(OSError):
                path.unlink()
    logs = []
    for path in _list_directory(data / LOGS):
        files = _list_directory(path)
        newest = max((_modified_at(file) for file in files), default=_modified_at(path))
        logs.append((newest, sum(_size_bytes(file) for file in files), path))
    logs.sort(reverse=True)
    bytes_left = retention.logs_bytes
    for newest, size, path in logs:
        bytes_left -= size
        if (bytes_left < 0 or at - newest > retention.logs) and not _is_running(data, path.name):
            shutil.rmtree(path, ignore_errors=True)


def sweep_daily(data: Path, retention: RunRetention) -> None:
    """Sweep, unless that was done less than a day ago."""
    last_sweep = data / ".swept"
    if time.time() - _modified_at(last_sweep) > _DAY:
        with contextlib.suppress(OSError):
            last_sweep.touch(mode=0o600)
            sweep(data, retention)


def _is_running(data: Path, jobid: str) -> bool:
    try:
        document = run_files.read(data / RUNS / f"{jobid}.json")
        live = run_files.decode_run(document).state.is_live
    except (OSError, RunFileError):
        return False
    return live and (
        document.get("node") != os.uname().nodename or run_files.is_supervisor_alive(document)
    )


def _list_directory(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory)]
    except OSError:
        return []


def _modified_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _size_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
