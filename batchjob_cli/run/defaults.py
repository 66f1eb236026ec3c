"""Defaults and limits of all runs, from a YAML file of the site or the user.

    cpus: 1
    memory: 4G
    max-time-limit: 2d
    max-runs: 4
    log:
      file: /var/log/batchjob/runs.log

These limits are conventions: users who may run commands may also run them without batchjob.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.runtime.settings import SettingsError, build_section, load_file, option
from batchjob.runtime.values import duration, integer, one_of, size, with_metavar

VARIABLE = "BATCHJOB_RUN_CONFIG"
SITE_FILE = Path("/etc/batchjob/run.yml")


@with_metavar("N")
def positive(value: Any) -> float:
    """A number above 0."""
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 1e6:
        raise ValueError(f"expected a number above 0, got {value!r}")
    return number


@with_metavar("SIZE")
def positive_size(value: Any) -> int:
    """A size above 0."""
    if parsed := size(value):
        return parsed
    raise ValueError("expected a size above 0")


@dataclass(frozen=True)
class RunDefaults:
    """Limits of runs; flags override all but the last two."""

    cpus: float | None = option(None, "CPU limit, in CPUs.", parse=positive)
    memory: int | None = option(None, "Memory.", parse=positive_size)
    io: int | None = option(
        None, "IO limit in bytes per second, for reads and for writes.", parse=positive_size
    )
    time_limit: float | None = option(None, "Time limit.", parse=duration)
    grace: float = option(
        10.0, "Time between SIGTERM and SIGKILL at the time limit.", parse=duration
    )
    max_time_limit: float | None = option(
        None, "Maximum time limit; also the default of runs without one.", parse=duration
    )
    max_runs: int = option(
        0,
        "Maximum number of simultaneous runs per user; others wait; 0: no limit.",
        parse=integer,
    )


@dataclass(frozen=True)
class RunLogOptions:
    """Log of starts and ends of runs."""

    file: str = option("", "File to which each run appends its log lines; default: none.")
    format: str = option("logfmt", "Format of log lines.", parse=one_of("logfmt", "json"))


_SECTIONS: Mapping[str, type[Any]] = {"": RunDefaults, "log": RunLogOptions}


class RunConfiguration(NamedTuple):
    """Contents of the file."""

    limits: RunDefaults
    log: RunLogOptions


def load_configuration(path: str = "") -> RunConfiguration:
    """Read `path`, else $BATCHJOB_RUN_CONFIG, else the site's file if it exists.

    Raises SettingsError.
    """
    chosen = path or os.environ.get(VARIABLE, "") or (str(SITE_FILE) if SITE_FILE.exists() else "")
    given = load_file(chosen, _SECTIONS) if chosen else {}
    return RunConfiguration(
        *(build_section(cls, section, given) for section, cls in _SECTIONS.items())
    )


def effective_time_limit(requested: float | None, limits: RunDefaults) -> float | None:
    """Time limit of a run that requests `requested` seconds. Raises SettingsError."""
    longest = limits.max_time_limit
    wanted = limits.time_limit if requested is None else requested
    if wanted is None or longest is None:
        return longest if wanted is None else wanted
    if requested is not None and requested > longest:
        raise SettingsError(f"--time-limit: the maximum is {longest:g} s, got {requested:g} s")
    return min(wanted, longest)
