"""API tokens: shown once, stored as a digest.

A token has 256 random bits, so a plain SHA-256 is enough: there is no dictionary to try. Its maker
is stored too: the token has at most the maker's present rights, and ends with the token with which
it was made.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import read_if_changed

TABLE = schema.api_token
# At twenty requests a second, one user could otherwise fill the disk.
MAX_PER_USER = 1000
_USE_PRECISION_SECONDS = 3600  # of the last use: a write per request would be too many


class TokenRole(StrEnum):
    """The rights of a token."""

    USER = "user"  # own jobs, and those of accounts that the user coordinates
    VIEWER = "viewer"  # all jobs
    ADMIN = "admin"  # all jobs, and tokens

    def at_most(self, other: "TokenRole") -> "TokenRole":
        """The role with fewer rights."""
        ranks = list(TokenRole)
        return min(self, other, key=ranks.index)


class Maker(NamedTuple):
    """Who made a token, and how they were authenticated."""

    user: str = ""  # "": created on the server, by someone with write access to the database
    via: str = ""  # header, certificate, session, process; "" if `user` created it with a token
    certificate: str = ""  # which certificate, as named by certificates.py, or which process
    parent_id: int | None = None  # the token it was created with


MADE_ON_THE_SERVER = Maker()


class Token(NamedTuple):
    """A token as it is stored, without its text."""

    id: int
    username: str
    cluster: str  # "": on all clusters
    role: TokenRole
    label: str
    created_time: int
    expiry_time: int | None
    last_used_time: int | None
    parent_id: int | None
    maker: str
    maker_via: str
    maker_certificate: str


def create(
    db: Connection,
    username: str,
    role: TokenRole,
    label: str,
    now: int,
    *,
    cluster: str = "",
    expiry_time: int | None = None,
    maker: Maker = MADE_ON_THE_SERVER,
) -> str:
    """Create a token; its text exists only in the returned value.

    Raises sqlalchemy.exc.IntegrityError if the token with which it is made was revoked meanwhile.
    """
    text = f"bj_{secrets.token_urlsafe(32)}"
    db.execute(
        sa.insert(TABLE).values(
            digest=digest_of(text), username=username, cluster=cluster, role=role.value,
            label=label, created_time=now, expiry_time=expiry_time, parent_id=maker.parent_id,
            maker=maker.user, maker_via=maker.via, maker_certificate=maker.certificate,
        )
    )  # fmt: skip
    return text


def remaining(db: Connection, username: str, now: int) -> int:
    """How many more tokens a user may have; expired ones are deleted."""
    owned = TABLE.c.username == username
    db.execute(sa.delete(TABLE).where(owned, TABLE.c.expiry_time <= now))
    count = db.execute(sa.select(sa.func.count()).select_from(TABLE).where(owned)).scalar_one()
    return max(0, MAX_PER_USER - count)


def delete_of_processes(db: Connection) -> None:
    """Delete the tokens that were made through a `batchjob up`, which has ended."""
    db.execute(sa.delete(TABLE).where(TABLE.c.maker_via == "process"))


def find(db: Connection, text: str, now: int) -> Token | None:
    """The user of a token; None if it is unknown, revoked or expired."""
    for row in read_if_changed(db, _BY_DIGEST, digest=digest_of(text)):
        if row.expiry_time is None or row.expiry_time > now:
            return _token(row)
    return None


def with_ancestors(db: Connection, token: Token) -> list[Token]:
    """The token, the one it was created with, and so on; [] if it was revoked meanwhile."""
    if token.parent_id is None:
        return [token]
    # A token has a larger id than the one with which it was made.
    ancestors = [_token(row) for row in db.execute(_ANCESTORS, {"id": token.id})][::-1]
    is_revoked = not ancestors or ancestors[-1].parent_id is not None
    return [] if is_revoked else [token, *ancestors]


def record_use(db: Connection, token: Token, now: int) -> None:
    db.execute(sa.update(TABLE).where(TABLE.c.id == token.id).values(last_used_time=now))


def should_record_use(token: Token, now: int) -> bool:
    """Whether its recorded last use is an hour old: not every request should cause a write."""
    return token.last_used_time is None or token.last_used_time <= now - _USE_PRECISION_SECONDS


def list_tokens(
    db: Connection, username: str | None = None, clusters: Sequence[str] = ()
) -> list[Token]:
    """Tokens of all users or of one, on all clusters or limited to some of them.

    Clusters may have namesakes: users of one cluster must not see tokens for all clusters.
    """
    query = _COLUMNS.where(*_owner_conditions(username, clusters)).order_by(TABLE.c.id)
    return [_token(row) for row in db.execute(query)]


def revoke(
    db: Connection, token_id: int, username: str | None = None, clusters: Sequence[str] = ()
) -> list[Token]:
    """Delete a token that `list_tokens` finds, and all made with it; returns what was deleted.

    The database itself deletes tokens together with the one with which they were made.
    """
    which = _COLUMNS.where(TABLE.c.id == token_id, *_owner_conditions(username, clusters))
    row = db.execute(which).first()
    if row is None:
        return []
    descendants = [_token(each) for each in db.execute(_DESCENDANTS, {"id": token_id})]
    db.execute(sa.delete(TABLE).where(TABLE.c.id == token_id))
    return [_token(row), *descendants]


def _owner_conditions(
    username: str | None, clusters: Sequence[str]
) -> Iterator[ColumnElement[bool]]:
    if username is not None:
        yield TABLE.c.username == username
    if clusters:
        yield TABLE.c.cluster.in_(clusters)


_COLUMNS = sa.select(*(TABLE.c[name] for name in Token._fields))
_BY_DIGEST = _COLUMNS.where(TABLE.c.digest == sa.bindparam("digest"))


def _related(*, ancestors: bool) -> sa.Select[Any]:
    """All tokens with which one was made, or all that were made with it, transitively."""
    first = sa.select(TABLE.c.id, TABLE.c.parent_id).where(TABLE.c.id == sa.bindparam("id"))
    found = first.cte("related", recursive=True)
    link = TABLE.c.id == found.c.parent_id if ancestors else TABLE.c.parent_id == found.c.id
    found = found.union_all(sa.select(TABLE.c.id, TABLE.c.parent_id).join(found, link))
    related = TABLE.c.id.in_(sa.select(found.c.id))
    return _COLUMNS.where(related, TABLE.c.id != sa.bindparam("id")).order_by(TABLE.c.id)


_ANCESTORS = _related(ancestors=True)
_DESCENDANTS = _related(ancestors=False)


def _token(row: Any) -> Token:
    return Token._make(row)._replace(role=TokenRole(row.role))


def digest_of(text: str) -> str:
    """What is stored in place of a secret."""
    return hashlib.sha256(text.encode()).hexdigest()
