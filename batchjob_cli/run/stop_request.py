"""`<data>/runs/<uuid>.stop`: somebody wants a run to end. Its supervisor reads it at SIGTERM."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from batchjob.login import login


class StopRequest(NamedTuple):
    """Who wants it, and how long the run has between SIGTERM and SIGKILL."""

    user: str
    grace_seconds: float


def _path(runs: Path, jobid: str) -> Path:
    return runs / f"{jobid}.stop"


def leave(runs: Path, jobid: str, grace_seconds: float) -> None:
    """Write the request, readable for the run's owner; raises OSError."""
    path = _path(runs, jobid)
    temporary = runs / f".{jobid}.{os.getpid()}.stop"
    try:
        temporary.write_text(json.dumps({"user": login(), "grace": grace_seconds}))
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(runs: Path, jobid: str) -> StopRequest | None:
    """The request, if there is one."""
    try:
        document = json.loads(_path(runs, jobid).read_bytes())
        return StopRequest(str(document["user"]), float(document["grace"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def grace(runs: Path, jobid: str) -> float | None:
    """How long the run has, if it is to end."""
    request = read(runs, jobid)
    return None if request is None else request.grace_seconds


def take(runs: Path, jobid: str) -> StopRequest | None:
    """The request, which is done with now."""
    request = read(runs, jobid)
    _path(runs, jobid).unlink(missing_ok=True)
    return request
