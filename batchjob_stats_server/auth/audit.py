"""The audit log: who looked at whose jobs, and who made and revoked tokens for others."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from batchjob_stats_db.database.access import Access
from batchjob_stats_server.auth.rights import Principal

log = logging.getLogger("batchjob.audit")

_MAX_USERS_NAMED = 20
_MAX_WORD = 200  # characters of what a caller writes
_NOT_ASKED = ("fields", "format", "limit", "token")  # a token is a secret, here in a wrong place


def log_jobs_seen(principal: Principal, what: str, rows: Iterable[Mapping[Any, Any]]) -> None:
    """Record whose jobs are in an answer to `principal`; own jobs are not recorded.

    For a token made by another user, no jobs count as the user's own.
    """
    users = {row["username"] for row in rows}
    others = sorted(users if principal.token_creator else users - {principal.user})
    if others:
        more = len(others) - _MAX_USERS_NAMED
        names = ", ".join(others[:_MAX_USERS_NAMED]) + (f" and {more} others" if more > 0 else "")
        log_action(principal, f"saw {what} of {names}")


def log_question(
    principal: Principal, access: Access, path: str, parameters: Iterable[tuple[str, str]]
) -> None:
    """Record, before the answer, a question whose answer may be about others.

    It may name nobody, as sums do, or be empty or an error, and was asked nevertheless.
    """
    given = [pair for pair in parameters if pair[0] not in _NOT_ASKED]
    sees_others = access.everything or access.clusters or access.accounts
    is_own = ("user", principal.user) in given or not sees_others
    if principal.token_creator or not is_own:
        words = [f"{_shown(name)}={value[:_MAX_WORD]!r}" for name, value in given]
        log_action(principal, " ".join((f"asked for {path[:_MAX_WORD]!r}:", *words)).rstrip(":"))


def _shown(name: str) -> str:
    """The name of a parameter, on one line and without blanks: it may be no name that we know."""
    return name if name.isidentifier() and len(name) <= _MAX_WORD else repr(name[:_MAX_WORD])


def log_action(principal: Principal, what: str) -> None:
    """Record an action, under the name of the person behind it."""
    creator = principal.token_creator
    who = f"{creator} as {principal.user}" if creator else principal.user
    log.info("%s (%s) %s", who, principal.role, what)
