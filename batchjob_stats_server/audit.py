"""Who looked at whose jobs: one line for each answer with jobs of others."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from batchjob_stats_server.identity import Identity

log = logging.getLogger("batchjob.audit")

_NAMED = 20


def whose(rows: Iterable[Mapping[Any, Any]]) -> frozenset[str]:
    """The users of these jobs."""
    return frozenset(row["username"] for row in rows)


def seen(known: Identity, what: str, rows: Iterable[Mapping[Any, Any]]) -> None:
    """Note whose jobs are in an answer to `known`; own ones are nobody's business."""
    saw(known, what, whose(rows))


def saw(known: Identity, what: str, users: frozenset[str]) -> None:
    """The same by their names."""
    others = sorted(users - {known.user})
    if others:
        more = f" and {len(others) - _NAMED} others" if len(others) > _NAMED else ""
        names = ", ".join(others[:_NAMED])
        log.info("%s (%s) saw %s of %s%s", known.user, known.role, what, names, more)
