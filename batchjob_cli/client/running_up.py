"""The file in which a running `batchjob up` announces the address of a data directory."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs.record import current_process, is_supervisor_alive
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.user_files import replace_file

TOKEN_FILE = "token"  # noqa: S105 (a file name)
"""Beside it, for its owner alone; new at each start."""

_ANNOUNCEMENT_FILE = "up.json"
_MAX_BYTES = 4096


class RunningUp(NamedTuple):
    """A `batchjob up` that runs now."""

    url: str
    pid: int
    token: str  # "" if it may not be read


def find_running_up(data: Path) -> RunningUp | None:
    """The `batchjob up` that serves this directory, if any; the file of a killed one is ignored."""
    try:
        with (data / _ANNOUNCEMENT_FILE).open("rb") as file:
            document = parse_json(file.read(_MAX_BYTES))
        if not is_supervisor_alive(document):
            return None
        url, pid = str(document["url"]), int(document["supervisor"]["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        token = (data / TOKEN_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    return RunningUp(url, pid, token)


@contextlib.contextmanager
def announce(data: Path, url: str) -> Iterator[None]:
    """Announce that this process serves the directory at this address; raises OSError."""
    document = json.dumps({"url": url, "supervisor": current_process()._asdict()})
    with keep_file(data / _ANNOUNCEMENT_FILE, document):
        yield


@contextlib.contextmanager
def keep_file(path: Path, text: str) -> Iterator[None]:
    """Keep a file of one line, readable for its owner alone, until the end; raises OSError."""
    replace_file(path, f"{text}\n".encode("ascii"))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="ascii").strip() == text:
                path.unlink()
