"""API tokens: shown once, kept as a digest.

A token has 256 random bits, so a plain SHA-256 is enough: there is no dictionary to try.
"""

import hashlib
import secrets
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db import schema

TABLE = schema.api_token
_USED_EVERY = 3600  # how exactly the last use is noted: a write per request would be too many


class TokenRole(StrEnum):
    """What the bearer may do."""

    USER = "user"  # own jobs, and those of accounts that the user coordinates
    VIEWER = "viewer"  # all jobs
    ADMIN = "admin"  # all jobs, and tokens


class Token(NamedTuple):
    """A token on record."""

    id: int
    username: str
    cluster: str  # "" on every cluster
    role: TokenRole
    label: str
    created_time: int
    expiry_time: int | None
    last_used_time: int | None


def create(
    db: Connection,
    username: str,
    role: TokenRole,
    label: str,
    now: int,
    *,
    cluster: str = "",
    expiry_time: int | None = None,
) -> str:
    """Make a token; its text is nowhere but in what is returned."""
    text = f"bj_{secrets.token_urlsafe(32)}"
    db.execute(
        sa.insert(TABLE).values(
            digest=_digest(text), username=username, cluster=cluster, role=role.value,
            label=label, created_time=now, expiry_time=expiry_time,
        )
    )  # fmt: skip
    return text


def find(db: Connection, text: str, now: int) -> Token | None:
    """Whose token this is; None when it is unknown, revoked or expired."""
    row = db.execute(_OF_DIGEST, {"digest": _digest(text)}).first()
    if row is None or (row.expiry_time is not None and row.expiry_time <= now):
        return None
    return _token(row)


def used(db: Connection, token: Token, now: int) -> None:
    """Note the use of a token."""
    db.execute(sa.update(TABLE).where(TABLE.c.id == token.id).values(last_used_time=now))


def worth_noting(token: Token, now: int) -> bool:
    """Whether its last use on record is an hour ago: who only asks does not write each time."""
    return token.last_used_time is None or token.last_used_time <= now - _USED_EVERY


def listed(db: Connection, username: str | None = None) -> list[Token]:
    """All tokens, or a user's."""
    query = _COLUMNS.order_by(TABLE.c.id)
    if username is not None:
        query = query.where(TABLE.c.username == username)
    return [_token(row) for row in db.execute(query)]


def revoke(db: Connection, token_id: int, username: str | None = None) -> bool:
    """Delete a token (of this user); whether there was one."""
    which = TABLE.c.id == token_id
    if username is not None:
        which &= TABLE.c.username == username
    return db.execute(sa.delete(TABLE).where(which)).rowcount > 0


_COLUMNS = sa.select(
    TABLE.c.id, TABLE.c.username, TABLE.c.cluster, TABLE.c.role, TABLE.c.label,
    TABLE.c.created_time, TABLE.c.expiry_time, TABLE.c.last_used_time,
)  # fmt: skip
_OF_DIGEST = _COLUMNS.where(TABLE.c.digest == sa.bindparam("digest"))


def _token(row: Any) -> Token:
    return Token._make(row)._replace(role=TokenRole(row.role))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
