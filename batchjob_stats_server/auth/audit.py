"""The audit log: who looked at whose jobs, and who made and revoked tokens for others."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from batchjob_stats_server.auth.rights import Principal

log = logging.getLogger("batchjob.audit")

_NAMED = 20


def whose(rows: Iterable[Mapping[Any, Any]]) -> frozenset[str]:
    """The users of these jobs."""
    return frozenset(row["username"] for row in rows)


def seen(known: Principal, what: str, rows: Iterable[Mapping[Any, Any]]) -> None:
    """Record whose jobs are in an answer to `known`; own jobs are not recorded."""
    saw(known, what, whose(rows))


def saw(known: Principal, what: str, users: frozenset[str]) -> None:
    """The same by name; with a token that another user made, no jobs count as own ones."""
    others = sorted(users if known.on_behalf else users - {known.user})
    if others:
        more = f" and {len(others) - _NAMED} others" if len(others) > _NAMED else ""
        names = ", ".join(others[:_NAMED])
        did(known, f"saw {what} of {names}{more}")


def did(known: Principal, what: str) -> None:
    """Record an action, under the name of the person behind it."""
    who = f"{known.on_behalf} as {known.user}" if known.on_behalf else known.user
    log.info("%s (%s) %s", who, known.role, what)
