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


def sweep(data: Path, keep: RunRetention, now: float | None = None) -> None:
    """Delete what has expired, and the oldest logs if all logs together are too large.

    Unfinished runs are kept, and so is what cannot be deleted. Database rows have a retention of
    their own.
    """
    at = time.time() if now is None else now
    for path in _entries(data / RUNS):
        if at - _changed(path) > keep.records and not _running(data, path.name.partition(".")[0]):
            with contextlib.suppress(OSError):
                path.unlink()
    left = []
    for path in _entries(data / LOGS):
        files = _entries(path)
        newest = max((_changed(file) for file in files), default=_changed(path))
        left.append((newest, sum(_size(file) for file in files), path))
    left.sort(reverse=True)
    room = keep.logs_bytes
    for newest, size, path in left:
        room -= size
        if (room < 0 or at - newest > keep.logs) and not _running(data, path.name):
            shutil.rmtree(path, ignore_errors=True)


def sweep_daily(data: Path, keep: RunRetention) -> None:
    """Sweep, unless that was done less than a day ago."""
    mark = data / ".swept"
    if time.time() - _changed(mark) > _DAY:
        with contextlib.suppress(OSError):
            mark.touch(mode=0o600)
            sweep(data, keep)


def _running(data: Path, jobid: str) -> bool:
    try:
        document = run_files.read(data / RUNS / f"{jobid}.json")
        live = run_files.decoded(document).state.live
    except (OSError, RunFileError):
        return False
    return live and (document.get("node") != os.uname().nodename or run_files.alive(document))


def _entries(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory)]
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
