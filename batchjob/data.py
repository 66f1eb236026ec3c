"""The data directory: where one machine's own runs, logs, samples and database lie.

    runs/<uuid>.json              one file for each run (runs.py)
    logs/<uuid>/                  what the runs wrote
    samples/<jobid>/              measurements over time

It is its owner's alone (mode 0700). Where an administrator wants one for everybody, `runs` and
`logs` are made by hand with mode 1777, as /tmp is; the files in them are their writers' alone.
"""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "BATCHJOB_DATA"
RUNS, LOGS, SAMPLES = "runs", "logs", "samples"


def data_directory(given: str = "", environment: Mapping[str, str] = os.environ) -> Path:
    """What was asked for, else $BATCHJOB_DATA, else `batchjob` in the user's state directory.

    That is $XDG_STATE_HOME or ~/.local/state (XDG Base Directory Specification 0.8, where a
    relative path is to be ignored).
    """
    chosen = given or environment.get(VARIABLE, "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    state = environment.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return base / "batchjob"


def prepare(directory: Path, *parts: str) -> Path:
    """Make the data directory, and a directory in it, where they are not there; raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for part in parts:
        directory /= part
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory
