"""The specification of a run, and the defaults and limits of all runs.

The defaults come from a YAML file of the site or the user:

    cpus: 1
    memory: 4G
    max-time-limit: 2d
    max-runs: 4
    remote:            # for each person who starts runs over the API
      max-runs: 2
      users:
        ada: {max-runs: 8, max-time-limit: 0}

These limits are conventions: users who may run commands may also run them without batchjob. Of
people who start runs over the API, what is said of a user counts more than what is said of a role,
and that more than what is said of all. Their runs belong to the user who runs the server.
"""

import grp
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.local_runs.record import Run, current_process, new_run
from batchjob.runtime.formatting import format_count
from batchjob.runtime.formatting import size as format_size
from batchjob.runtime.settings import SettingsError, build_section, load_file, option, options_of
from batchjob.runtime.values import duration, format_cpu_list, size, with_metavar
from batchjob.schedulers.states import JobState
from batchjob_cli.run.limits import RunLimits
from batchjob_cli.run.queue import PersonLimits

VARIABLE = "BATCHJOB_RUN_CONFIG"
SITE_FILE = Path("/etc/batchjob/run.yml")
_ROLES = ("user", "viewer", "admin")  # TokenRole, whose module would load the database's


@with_metavar("N")
def positive(value: Any) -> float:
    """A number above 0."""
    try:
        parsed = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        parsed = 0.0
    if not 0 < parsed < 1e6:
        raise ValueError(f"expected a number above 0, got {value!r}")
    return parsed


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
        0, "Maximum number of simultaneous runs per user; others wait; 0: no limit."
    )


def _parse_people(value: Any) -> Mapping[str, PersonLimits]:
    known = [each.name for each in options_of({"": PersonLimits})]
    people: list[tuple[str, Any]] = list(value.items()) if isinstance(value, dict) else [("", 0)]
    for name, given in people:
        if not isinstance(given, dict) or not given.keys() <= set(known):
            raise ValueError(f"expected names, each with some of {', '.join(known)}; got {name!r}")
    return {str(name): build_section(PersonLimits, "", given) for name, given in people}


def _parse_roles(value: Any) -> Mapping[str, PersonLimits]:
    roles = _parse_people(value)
    if unknown := roles.keys() - set(_ROLES):
        raise ValueError(f"expected {', '.join(_ROLES)}, got {min(unknown)}")
    return roles


@dataclass(frozen=True)
class RemoteLimits(PersonLimits):
    """Limits of people who start runs over the API."""

    users: Mapping[str, PersonLimits] | None = option(
        None, "Limits of single people, by name.", parse=_parse_people
    )
    roles: Mapping[str, PersonLimits] | None = option(
        None, "Limits of the people with a role.", parse=_parse_roles
    )


_SECTIONS: Mapping[str, type[Any]] = {"": RunDefaults, "remote": RemoteLimits}


def load_configuration(path: str = "") -> tuple[RunDefaults, RemoteLimits]:
    """Read `path`, else $BATCHJOB_RUN_CONFIG, else the site's file if it exists.

    Raises SettingsError.
    """
    chosen = path or os.environ.get(VARIABLE, "") or (str(SITE_FILE) if SITE_FILE.exists() else "")
    given = load_file(chosen, _SECTIONS) if chosen else {}
    defaults = build_section(RunDefaults, "", given)
    return defaults, build_section(RemoteLimits, "remote", given)


def effective_time_limit(requested: float | None, limits: RunDefaults) -> float | None:
    """Time limit of a run that requests `requested` seconds. Raises SettingsError."""
    longest = limits.max_time_limit
    wanted = limits.time_limit if requested is None else requested
    if wanted is None or longest is None:
        return longest if wanted is None else wanted
    if requested is not None and requested > longest:
        raise SettingsError(f"--time-limit: the maximum is {longest:g} s, got {requested:g} s")
    return min(wanted, longest)


def limits_of(remote: RemoteLimits, person: str, role: str) -> PersonLimits:
    """The limits of a person."""
    said = ((remote.users or {}).get(person), (remote.roles or {}).get(role), remote)
    return PersonLimits(
        *(
            next((v for x in said if x and (v := getattr(x, each.name)) is not None), None)
            for each in fields(PersonLimits)
        )
    )


def queues_of(
    person: str, limits: PersonLimits, asked: RunLimits
) -> list[tuple[str, PersonLimits]]:
    """The queue of a person's runs, if they are limited.

    Raises SettingsError if the person may never have what the run asks for.
    """
    for name, flag, most, wanted, text in (
        ("max-cpus", "--cpus", limits.max_cpus, asked.cpus, partial(format_count, what="CPU")),
        ("max-memory", "--memory", limits.max_memory, asked.memory_bytes, format_size),
    ):
        if most and not wanted:
            raise SettingsError(f"remote.{name}: expected {flag}; {person} may have {text(most)}")
        if most and wanted and wanted > most:
            raise SettingsError(
                f"remote.{name}: {person} may have {text(most)}, got {text(wanted)}"
            )
    amounts = (limits.max_runs, limits.max_waiting, limits.max_cpus, limits.max_memory)
    return [(person, limits)] if any(amounts) else []


def time_limit_of(
    person: str, limits: PersonLimits, asked: float | None, default: float | None
) -> float | None:
    """The time limit of a person's run, in seconds; raises SettingsError."""
    most = limits.max_time_limit
    if most and asked and asked > most:
        raise SettingsError(f"remote.max-time-limit: {person} may have {most:g} s, got {asked:g} s")
    return min(filter(None, (default, most)), default=None)


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
    queues: tuple[tuple[str, PersonLimits], ...] = ()  # in which it needs a place: see QueuedRun
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
