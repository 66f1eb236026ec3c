"""`<data>/runs/<uuid>.stop`: a request to end a run, which its supervisor reads at SIGTERM.

Only the run's user and root can request it. In a directory that several users share, files of other
users are ignored: where one of them has the name, the request is `<uuid>.<random>.stop`.
"""

import contextlib
import json
import os
import stat
from pathlib import Path

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.logins import login_of
from batchjob.runtime.user_files import open_regular_file, other_name, replace_file

_MAX_BYTES = 1000
_MAX_GRACE = 86400.0  # seconds


StopRequest = tuple[str, float]
"""Who requests it, and the time between SIGTERM and SIGKILL (seconds)."""


def write(runs: Path, jobid: str, grace_seconds: float) -> None:
    """Write the request, readable for the run's owner; raises OSError."""
    document = json.dumps({"grace": grace_seconds}).encode("ascii")
    path = runs / f"{jobid}.stop"
    try:
        replace_file(path, document, mode=0o644)
    except OSError:
        replace_file(other_name(path), document, mode=0o644)


def read(runs: Path, jobid: str) -> StopRequest | None:
    """The request, if there is a valid one; another user's file is not even read.

    Whatever the file contains, nothing is raised: the end of the run is still to be recorded.
    """
    requests = (_read(path) for path in _paths(runs, jobid))
    return next((request for request in requests if request is not None), None)


def _paths(runs: Path, jobid: str) -> list[Path]:
    """Where a request may be; the directory is listed only if another user's file is there."""
    usual = runs / f"{jobid}.stop"
    try:
        status = usual.lstat()
    except OSError:
        return [usual]
    if stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid()):
        return [usual]
    return [usual, *runs.glob(f"{jobid}.*.stop")]


def _read(path: Path) -> StopRequest | None:
    try:
        with open_regular_file(path, (0, os.geteuid())) as (file, status):
            document = parse_json(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return None
    grace = document.get("grace") if isinstance(document, dict) else None
    # Compared before it is converted: an integer may be larger than any float.
    if not isinstance(grace, int | float) or not 0 <= grace <= _MAX_GRACE:
        return None
    return login_of(status.st_uid), float(grace)


def pop(runs: Path, jobid: str) -> StopRequest | None:
    """Read the request and delete it."""
    request = read(runs, jobid)
    for path in _paths(runs, jobid):
        with contextlib.suppress(OSError):  # another user's file, in a shared directory
            path.unlink()
    return request
