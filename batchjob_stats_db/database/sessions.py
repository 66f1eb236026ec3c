"""Sessions of people who logged in through the site's identity provider, and their groups.

A session is stored here, not in its cookie, so that it can be ended: then a copy of the cookie is
worthless. Its text has 256 random bits, and only its SHA-256 is stored, as with tokens.
"""

import json
import secrets
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.runtime.json_reader import parse_json
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.tokens import digest_of

PREFIX = "bs_"

_session, _login = schema.login_session, schema.login


ProviderSession = tuple[str, str]
"""The provider's name of a person (`sub`), and their session there (`sid`; "" for none)."""


def begin(
    db: Connection,
    username: str,
    groups: Iterable[str],
    provider: ProviderSession,
    now: int,
    expiry_time: int,
) -> str:
    """Record a log-in and begin a session; its text exists only in the returned value."""
    text = PREFIX + secrets.token_urlsafe(32)
    db.execute(sa.delete(_session).where(_session.c.expiry_time <= now))
    db.execute(sa.delete(_login).where(_login.c.username == username))
    stored = json.dumps(sorted(set(groups)))
    db.execute(sa.insert(_login).values(username=username, groups=stored, login_time=now))
    db.execute(
        sa.insert(_session).values(
            digest=digest_of(text), username=username, subject=provider[0],
            provider_session=provider[1], created_time=now, expiry_time=expiry_time,
        )
    )  # fmt: skip
    return text


def user_of(db: Connection, text: str, now: int) -> str | None:
    """The user of a session; None if it is unknown or has ended."""
    c = _session.c
    query = sa.select(c.username).where(c.digest == digest_of(text), c.expiry_time > now)
    return db.execute(query).scalar()


def groups_of(db: Connection, username: str, since: int) -> frozenset[str]:
    """The groups that the provider named at the last log-in, if that was after `since`."""
    query = sa.select(_login.c.groups).where(
        _login.c.username == username, _login.c.login_time > since
    )
    stored = db.execute(query).scalar()
    return frozenset(parse_json(stored)) if stored else frozenset()


def end_all(db: Connection, username: str) -> int:
    return db.execute(sa.delete(_session).where(_session.c.username == username)).rowcount


def end_at_provider(db: Connection, provider: ProviderSession) -> int:
    """End what the provider has ended: one session, or all of a person; returns how many."""
    pairs = zip((_session.c.subject, _session.c.provider_session), provider, strict=True)
    conditions = [column == value for column, value in pairs if value]
    return db.execute(sa.delete(_session).where(*conditions)).rowcount if conditions else 0
