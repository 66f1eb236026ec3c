"""The specification of a run, and the defaults and limits of all runs.

The defaults come from a YAML file of the site or the user:

    cpus: 1
    memory: 4G
    max-time-limit: 2d
    max-runs: 4
    remote:            # for each person who starts runs over the API
      max-runs: 2
    log:
      file: /var/log/batchjob/runs.log

These limits are conventions: users who may run commands may also run them without batchjob.
"""

import grp
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.local_runs.record import Run, current_process, new_run
from batchjob.runtime.cpu_lists import format_cpu_list
from batchjob.runtime.settings import SettingsError, build_section, load_file, option
from batchjob.runtime.values import duration, integer, one_of, size, with_metavar
from batchjob.schedulers.states import JobState
from batchjob_cli.run.limits import RunLimits
from batchjob_cli.run.person_limits import RemoteLimits
from batchjob_cli.run.queue import QueueLimits

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
    """Limits of runs; flags override all but the last two.

    Where one of the first three is set, a limit that cannot be applied is never left out.
    """

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


_SECTIONS: Mapping[str, type[Any]] = {
    "": RunDefaults, "remote": RemoteLimits, "log": RunLogOptions,
}  # fmt: skip


class RunConfiguration(NamedTuple):
    """The site's file."""

    defaults: RunDefaults
    remote: RemoteLimits
    log: RunLogOptions


def load_configuration(path: str = "") -> RunConfiguration:
    """Read `path`, else $BATCHJOB_RUN_CONFIG, else the site's file if it exists.

    Raises SettingsError.
    """
    chosen = path or os.environ.get(VARIABLE, "") or (str(SITE_FILE) if SITE_FILE.exists() else "")
    given = load_file(chosen, _SECTIONS) if chosen else {}
    sections = (build_section(cls, section, given) for section, cls in _SECTIONS.items())
    return RunConfiguration(*sections)


def effective_time_limit(requested: float | None, limits: RunDefaults) -> float | None:
    """Time limit of a run that requests `requested` seconds. Raises SettingsError."""
    longest = limits.max_time_limit
    wanted = limits.time_limit if requested is None else requested
    if wanted is None or longest is None:
        return longest if wanted is None else wanted
    if requested is not None and requested > longest:
        raise SettingsError(f"--time-limit: the maximum is {longest:g} s, got {requested:g} s")
    return min(wanted, longest)


class RunSpecification(NamedTuple):
    """A run to be started."""

    command: tuple[str, ...]
    data: Path
    limits: RunLimits
    name: str = ""
    time_limit: float | None = None  # seconds
    grace: float = 10.0  # seconds from SIGTERM to SIGKILL
    start_at: float | None = None  # epoch seconds
    cgroup: str = "auto"  # auto, always, never
    strict: bool = False  # do not start the run if a limit cannot be applied
    detach: bool = False
    quiet: bool = False
    keep_output: bool = True
    log_bytes: int = 0  # maximum per stream, compressed
    cpus: frozenset[int] = frozenset()  # CPUs to bind it to; empty: none
    queues: tuple[QueueLimits, ...] = ()  # in which it needs a place
    requested_by: str = ""  # the person who asked for it over the API
    gpus: int = 0  # whole GPUs
    no_data: str = ""  # why there is no data directory
    gpu_numbers: frozenset[int] = frozenset()  # of the GPUs that it holds


def first_record(spec: RunSpecification, jobid: str, reason: str) -> Run:
    """The record of a run that waits, or is about to start; raises OSError."""
    return new_run(
        jobid, JobState.PENDING if reason else JobState.RUNNING, current_process(),
        name=spec.name, group=_group(), submit_line=shlex.join(spec.command),
        time_limit_seconds=spec.time_limit, cpu_list=format_cpu_list(spec.cpus), reason=reason,
        requested_by=spec.requested_by,
    )  # fmt: skip


def _group() -> str:
    try:
        return grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return ""
