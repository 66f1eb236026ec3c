"""The limits of each person who starts runs over the API, from the site's file of runs:

    remote:
      max-runs: 2
      max-time-limit: 1d
      users:
        ada: {max-runs: 8, max-time-limit: 0}

What is said of a user counts more than what is said of a role, and that more than what is said of
all. The runs themselves belong to the user who runs the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from batchjob.runtime.formatting import size as format_size
from batchjob.runtime.settings import SettingsError, build_section, option, options_of
from batchjob.runtime.values import duration, integer, number, size
from batchjob_cli.run.limits import RunLimits, count_of
from batchjob_cli.run.queue import QueueLimits

_ROLES = ("user", "viewer", "admin")  # TokenRole, whose module would load the database's


@dataclass(frozen=True)
class PersonLimits:
    """What a person may have. None: nothing is said; 0: no limit."""

    max_runs: int | None = option(None, "Runs at once; further ones wait.", parse=integer)
    max_waiting: int | None = option(None, "Waiting runs; others are refused.", parse=integer)
    max_cpus: float | None = option(None, "CPUs of all running runs; others wait.", parse=number)
    max_memory: int | None = option(None, "Memory of all running runs; others wait.", parse=size)
    max_time_limit: float | None = option(None, "Time limit of a run.", parse=duration)


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


def limits_of(remote: RemoteLimits, person: str, role: str) -> PersonLimits:
    """The limits of a person."""
    said = ((remote.users or {}).get(person), (remote.roles or {}).get(role), remote)
    return PersonLimits(
        *(
            next((v for x in said if x and (v := getattr(x, each.name)) is not None), None)
            for each in fields(PersonLimits)
        )
    )


def queue_of(person: str, limits: PersonLimits, asked: RunLimits) -> QueueLimits | None:
    """The queue of a person's runs; None if they are not limited.

    Raises SettingsError if the person may never have what the run asks for.
    """
    for name, flag, most, wanted, text in (
        ("max-cpus", "--cpus", limits.max_cpus, asked.cpus, partial(count_of, "CPU")),
        ("max-memory", "--memory", limits.max_memory, asked.memory_bytes, format_size),
    ):
        if most and not wanted:
            raise SettingsError(f"remote.{name}: expected {flag}; {person} may have {text(most)}")
        if most and wanted and wanted > most:
            raise SettingsError(
                f"remote.{name}: {person} may have {text(most)}, got {text(wanted)}"
            )
    queue = QueueLimits(
        person, limits.max_runs or 0, limits.max_waiting or 0, limits.max_cpus or 0.0,
        limits.max_memory or 0,
    )  # fmt: skip
    return queue if any(queue[1:]) else None


def time_limit_of(
    person: str, limits: PersonLimits, asked: float | None, default: float | None
) -> float | None:
    """The time limit of a person's run, in seconds; raises SettingsError."""
    most = limits.max_time_limit
    if most and asked and asked > most:
        raise SettingsError(f"remote.max-time-limit: {person} may have {most:g} s, got {asked:g} s")
    return min(filter(None, (default, most)), default=None)
