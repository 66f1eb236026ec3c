"""The file in which a running `batchjob up` announces the address of a data directory."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs.record import alive, this_process

TOKEN_FILE = "token"  # noqa: S105 (a file name)
"""Beside it, for its owner alone; new at each start."""

_FILE = "up.json"
_LONGEST = 4096


class RunningUp(NamedTuple):
    """A `batchjob up` that runs now."""

    url: str
    pid: int
    token: str  # "" if it may not be read


def running_up(data: Path) -> RunningUp | None:
    """The one that serves this directory, if any; the file of a killed one does not count."""
    try:
        with (data / _FILE).open("rb") as file:
            said = json.loads(file.read(_LONGEST))
        if not alive(said):
            return None
        url, pid = str(said["url"]), int(said["supervisor"]["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        token = (data / TOKEN_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    return RunningUp(url, pid, token)


@contextlib.contextmanager
def announced(data: Path, url: str) -> Iterator[None]:
    """Announce that this process serves the directory at this address; raises OSError."""
    said = json.dumps({"url": url, "supervisor": this_process()._asdict()})
    with kept(data / _FILE, said):
        yield


@contextlib.contextmanager
def kept(path: Path, text: str) -> Iterator[None]:
    """Keep a file of one line, readable for its owner alone, until the end; raises OSError."""
    # Created with mode 0600.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="ascii").strip() == text:
                path.unlink()
