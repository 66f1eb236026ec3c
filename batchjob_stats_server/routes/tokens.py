"""Tokens: who may make, see and revoke which."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from batchjob_stats_db import tokens as kept
from batchjob_stats_db.tokens import TokenRole
from batchjob_stats_server.identity import LOGIN, Identity, Known
from batchjob_stats_server.keys import flat
from batchjob_stats_server.parameters import Query as Parameters
from batchjob_stats_server.parameters import Word
from batchjob_stats_server.problems import Problem
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.services import Given, Services

router = APIRouter(prefix=PREFIX)

_NO_STORE = {"Cache-Control": "no-store"}


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


class NewToken(BaseModel):
    """A token to be made. Only an admin makes one for somebody else."""

    model_config = ConfigDict(extra="forbid")

    label: Word
    role: TokenRole = TokenRole.USER
    lifetime_seconds: int = Field(90 * 86400, ge=60, le=10**10)
    user: Word | None = Field(None, description="Whose; else the caller's.")
    cluster: str = Field("", max_length=256, description="Only there; else wherever the caller is.")


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
    """The caller's tokens; for an admin all, or a user's."""
    response.headers.update(_NO_STORE)
    if known.role is not TokenRole.ADMIN and which.user not in (None, known.user):
        raise Problem(403, "only an admin may see the tokens of others")
    user = which.user if known.role is TokenRole.ADMIN else known.user
    with services.reader.connect() as db:
        return [TokenRow(**_row(token)) for token in kept.listed(db, user)]


def _row(token: kept.Token) -> dict[str, Any]:
    return flat(token._asdict())


@router.post("/tokens", status_code=201)
def make_token(services: Given, known: Known, response: Response, wanted: NewToken) -> MadeToken:
    """Make a token, which may no more than its maker, nor live longer than the maker's own."""
    response.headers.update(_NO_STORE)
    if known.role is not TokenRole.ADMIN:
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
    with services.writer.begin() as db:
        text = kept.create(
            db, user, wanted.role, wanted.label, now, cluster=cluster, expiry_time=expiry
        )
    return MadeToken(token=text, expiry_time=expiry * 1000)


def _within_rights(known: Identity, wanted: NewToken) -> None:
    if wanted.user not in (None, known.user):
        raise Problem(403, "only an admin may make a token for somebody else")
    if wanted.role not in (TokenRole.USER, known.role):
        raise Problem(403, f"a {known.role} may not make a token with the role {wanted.role}")
    if wanted.cluster and known.clusters and wanted.cluster not in known.clusters:
        raise Problem(403, f"cluster: expected one of {', '.join(known.clusters)}")


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(
    services: Given, known: Known, token_id: Annotated[int, Path(ge=1, lt=2**63)]
) -> None:
    """Revoke a token of the caller's; an admin any."""
    user = None if known.role is TokenRole.ADMIN else known.user
    try:
        await run_in_threadpool(_revoke, services, token_id, user)
    finally:  # it may have been revoked though nobody waits for the answer any more
        services.askers.forget()


def _revoke(services: Services, token_id: int, user: str | None) -> None:
    with services.writer.begin() as db:
        if not kept.revoke(db, token_id, user):
            raise Problem(404, "there is no such token")
