"""The audit log: who looked at whose jobs, and who made and revoked tokens for others."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from batchjob_stats_db.database.access import Access
from batchjob_stats_server.auth.rights import Principal

log = logging.getLogger("batchjob.audit")

_MAX_USERS_NAMED = 20


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


def log_sums_requested(
    principal: Principal, access: Access, what: str, filters: Mapping[str, object]
) -> None:
    """Record, before the answer, a question about sums of others, whose rows may name nobody."""
    sees_others = access.everything or access.clusters or access.accounts
    is_own = filters.get("user") == principal.user or not sees_others
    if principal.token_creator or not is_own:
        words = [f"{name}={value!r}" for name, value in filters.items() if value is not None]
        log_action(principal, " ".join((f"asked for {what}:", *words)).removesuffix(":"))


def log_action(principal: Principal, what: str) -> None:
    """Record an action, under the name of the person behind it."""
    creator = principal.token_creator
    who = f"{creator} as {principal.user}" if creator else principal.user
    log.info("%s (%s) %s", who, principal.role, what)
