"""Standard error of a run of this machine, for the page of a failed one."""

from collections import deque
from pathlib import Path

from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import Reader

_LINES = 10
_MAX_LINE_CHARACTERS = 300


def last_errors(data: Path, jobid: str, uid: int | None) -> list[str]:
    """The last lines of a run in this data directory; none if they were not kept."""
    if not jobid or "/" in jobid or jobid.startswith("."):
        return []
    try:
        reader = Reader(data / LOGS / jobid, "stderr", uid)
        reader.seek_to_last(_LINES)
        lines = deque(reader.read(), maxlen=_LINES)
    except OSError:
        return []
    return [line.text.decode("utf-8", "replace")[:_MAX_LINE_CHARACTERS] for line in lines]
