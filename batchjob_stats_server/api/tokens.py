"""Tokens: who may create, list and revoke which."""

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from batchjob_stats_db.database import tokens as kept
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.params import Query as Parameters
from batchjob_stats_server.api.params import Word
from batchjob_stats_server.api.row_keys import flat
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import LOGIN, Known
from batchjob_stats_server.auth.rights import LONGEST_LINE, Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.services import Given

router = APIRouter(prefix=PREFIX)

_NO_STORE = {"Cache-Control": "no-store"}
_NOT_HERE = "`batchjob up` cannot create or revoke tokens in a database that a server uses"


class TokenRow(BaseModel):
    """A token on record; its text is not."""

    id: int
    user: str
    cluster: str
    role: TokenRole
    label: str
    created_time: int
    created_time_rfc3339: str | None
    expiry_time: int | None
    expiry_time_rfc3339: str | None
    last_used_time: int | None
    last_used_time_rfc3339: str | None
    made_by: str = Field(description="Creator; empty: created on the server.")
    made_with: int | None = Field(
        description="Token with which it was created, and with which it is revoked."
    )


class NewToken(BaseModel):
    """A token to be made. Only an admin makes one for another user."""

    model_config = ConfigDict(extra="forbid")

    label: Word
    role: TokenRole = TokenRole.USER
    lifetime_seconds: int = Field(90 * 86400, ge=60, le=10**10)
    user: Word | None = Field(None, description="User of the token; default: the caller.")
    cluster: str = Field(
        "", max_length=256, description="Cluster of the token; default: all clusters of the caller."
    )


class MadeToken(BaseModel):
    """The text of a token, which is shown this once."""

    token: str
    expiry_time: int


class TokensQuery(Parameters):
    """Whose tokens; only an admin sees those of others."""

    user: Word | None = None


@router.get("/tokens")
def tokens(
    services: Given, known: Known, response: Response, which: Annotated[TokensQuery, Query()]
) -> list[TokenRow]:
    """The caller's tokens; for an admin all of the admin's clusters, or a user's."""
    response.headers.update(_NO_STORE)
    if known.role is not TokenRole.ADMIN and which.user not in (None, known.user):
        raise Problem(403, "only an admin may see the tokens of others")
    user = which.user if known.role is TokenRole.ADMIN else known.user
    with services.reader.connect() as db:
        return [TokenRow(**_row(token)) for token in kept.listed(db, user, known.clusters)]


def _row(token: kept.Token) -> dict[str, Any]:
    row = token._asdict()
    return {**flat(row), "made_by": token.maker, "made_with": token.parent_id}


@router.post("/tokens", status_code=201)
def make_token(services: Given, known: Known, response: Response, wanted: NewToken) -> MadeToken:
    """Create a token, which may never do more than its maker, nor outlive the maker's own."""
    response.headers.update(_NO_STORE)
    _within_rights(known, wanted)
    if not LOGIN.fullmatch(user := wanted.user or known.user):
        raise Problem(422, "user: expected the name of one user")
    now = int(services.clock())
    longest = int(services.settings.auth.longest_token)
    expiry = now + min(wanted.lifetime_seconds, longest)
    if known.expiry_time is not None:
        expiry = min(expiry, known.expiry_time)
    cluster = wanted.cluster or (known.clusters[0] if len(known.clusters) == 1 else "")
    if not cluster and known.clusters:
        raise Problem(422, f"cluster: expected one of {', '.join(known.clusters)}")
    try:
        with services.writer.begin() as db:
            if not kept.room(db, user, now):
                raise Problem(409, f"{user} has {kept.MOST} tokens; revoke some first")
            text = kept.create(
                db, user, wanted.role, wanted.label, now,
                cluster=cluster, expiry_time=expiry, maker=known.as_maker(),
            )  # fmt: skip
    except sa.exc.IntegrityError as error:
        raise Problem(401, "the token of this request has been revoked") from error
    if user != known.user or known.on_behalf:
        where = f"cluster {cluster}" if cluster else "all clusters"
        audit.did(known, f"made a token for {user} ({wanted.role}, {where})")
    return MadeToken(token=text, expiry_time=expiry * 1000)


def _within_rights(known: Principal, wanted: NewToken) -> None:
    if not known.makes_tokens:
        raise Problem(403, _NOT_HERE)
    if known.token_id is not None and known.made_with + 2 > LONGEST_LINE:
        raise Problem(403, f"tokens created with one another: at most {LONGEST_LINE} in a row")
    if wanted.cluster and known.clusters and wanted.cluster not in known.clusters:
        raise Problem(403, f"cluster: expected one of {', '.join(known.clusters)}")
    if known.role is TokenRole.ADMIN:
        return
    if wanted.user not in (None, known.user):
        raise Problem(403, "only an admin may create a token for another user")
    if wanted.role not in (TokenRole.USER, known.role):
        raise Problem(403, f"a {known.role} may not create a token with the role {wanted.role}")


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(
    services: Given, known: Known, token_id: Annotated[int, Path(ge=1, lt=2**63)]
) -> None:
    """Revoke a token of the caller's, and those made with it; an admin any of their clusters."""
    if not known.makes_tokens:
        raise Problem(403, _NOT_HERE)
    user = None if known.role is TokenRole.ADMIN else known.user
    with services.writer.begin() as db:
        revoked = kept.revoke(db, token_id, user, known.clusters)
    if not revoked:
        raise Problem(404, "there is no such token")
    others = [token for token in revoked if token.username != known.user or known.on_behalf]
    if others:
        named = ", ".join(f"{token.id} of {token.username}" for token in others)
        audit.did(known, f"revoked token {named}")
