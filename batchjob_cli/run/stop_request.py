"""`<data>/runs/<uuid>.stop`: a request to end a run, which its supervisor reads at SIGTERM.

Only the run's user and root can request it. In a directory that several users share, files of other
users are ignored.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs.user_files import open_regular_file, replace_file
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.logins import login_of

_MAX_BYTES = 1000
_MAX_GRACE = 86400.0  # seconds


class StopRequest(NamedTuple):
    """Who requests it, and the time between SIGTERM and SIGKILL."""

    user: str
    grace_seconds: float


def _path(runs: Path, jobid: str) -> Path:
    return runs / f"{jobid}.stop"


def write(runs: Path, jobid: str, grace_seconds: float) -> None:
    """Write the request, readable for the run's owner; raises OSError."""
    document = json.dumps({"grace": grace_seconds}).encode("ascii")
    replace_file(_path(runs, jobid), document, mode=0o644)


def read(runs: Path, jobid: str) -> StopRequest | None:
    """The request, if there is a valid one; another user's file is not even read."""
    try:
        with open_regular_file(_path(runs, jobid), (0, os.geteuid())) as (file, status):
            document = parse_json(file.read(_MAX_BYTES))
        grace = float(document["grace"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return StopRequest(login_of(status.st_uid), grace) if 0 <= grace <= _MAX_GRACE else None


def read_grace(runs: Path, jobid: str) -> float | None:
    """The time between SIGTERM and SIGKILL, if an end was requested."""
    request = read(runs, jobid)
    return None if request is None else request.grace_seconds


def pop(runs: Path, jobid: str) -> StopRequest | None:
    """Read the request and delete it."""
    request = read(runs, jobid)
    with contextlib.suppress(OSError):  # another user's file, in a shared directory
        _path(runs, jobid).unlink()
    return request
