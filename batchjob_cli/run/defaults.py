"""What a site, or a user, has set down for all runs: a YAML file.

    cpus: 1
    memory: 4G
    longest-time: 2d
    most-runs: 4
    log:
      file: /var/log/batchjob/runs.log

Whoever may run commands may run them without us: the file is an agreement, no wall.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.runtime.settings import SettingsError, load_file, make, option
from batchjob.runtime.values import called, duration, integer, one_of, size

VARIABLE = "BATCHJOB_RUN_CONFIG"
SITE_FILE = Path("/etc/batchjob/run.yml")


@called("N")
def positive(value: Any) -> float:
    """A number above 0."""
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 1e6:
        raise ValueError(f"expected a number above 0, got {value!r}")
    return number


@called("SIZE")
def positive_size(value: Any) -> int:
    """A size above 0."""
    if parsed := size(value):
        return parsed
    raise ValueError("expected a size above 0")


@dataclass(frozen=True)
class RunDefaults:
    """Limits; flags go over all but the last two."""

    cpus: float | None = option(None, "CPUs' time.", parse=positive)
    memory: int | None = option(None, "Memory.", parse=positive_size)
    io: int | None = option(None, "Bytes a second, read and written.", parse=positive_size)
    time_limit: float | None = option(None, "Time limit.", parse=duration)
    grace: float = option(10.0, "From SIGTERM to SIGKILL at the time limit.", parse=duration)
    longest_time: float | None = option(
        None, "Time limit of a run that has none; no run may ask for more.", parse=duration
    )
    most_runs: int = option(
        0, "Runs of one user at once; others wait for their turn. 0: no limit.", parse=integer
    )


@dataclass(frozen=True)
class RunLogOptions:
    """Lines about the life of runs."""

    file: str = option("", "File that each run adds its lines to; without it there are none.")
    format: str = option("logfmt", "Form of a log line.", parse=one_of("logfmt", "json"))


SECTIONS: Mapping[str, type[Any]] = {"": RunDefaults, "log": RunLogOptions}


class RunConfiguration(NamedTuple):
    """All that the file says."""

    limits: RunDefaults
    log: RunLogOptions


def configuration(path: str = "") -> RunConfiguration:
    """Of the file that is named, else $BATCHJOB_RUN_CONFIG, else the site's where there is one.

    Raises SettingsError.
    """
    chosen = path or os.environ.get(VARIABLE, "") or (str(SITE_FILE) if SITE_FILE.exists() else "")
    given = load_file(chosen, SECTIONS) if chosen else {}
    return RunConfiguration(*(make(cls, section, given) for section, cls in SECTIONS.items()))


def time_limit(asked: float | None, limits: RunDefaults) -> float | None:
    """The time limit of a run that asks for this one; raises SettingsError."""
    longest = limits.longest_time
    wanted = limits.time_limit if asked is None else asked
    if wanted is None or longest is None:
        return longest if wanted is None else wanted
    if asked is not None and asked > longest:
        raise SettingsError(f"--time-limit: runs may take {longest:g} s at most, got {asked:g} s")
    return min(wanted, longest)
