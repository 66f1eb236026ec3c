"""Tokens: who may create, list and revoke which."""

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from batchjob.runtime.logins import is_login
from batchjob_stats_db.database import tokens as token_store
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import PREFIX, InQuery, QueryParams, RowId, Word
from batchjob_stats_server.api.rows import as_answer_row
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.auth.rights import MAX_TOKEN_CHAIN, Principal, log_action
from batchjob_stats_server.http.problems import Problem

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)


class TokenRow(BaseModel):
    """A recorded token, without its text, which is not stored."""

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
    """A token to create. Only admins may create one for another user."""

    model_config = ConfigDict(extra="forbid")

    label: Word
    role: TokenRole = TokenRole.USER
    lifetime_seconds: int = Field(90 * 86400, ge=60, le=10**10)
    user: Word | None = Field(None, description="User of the token; default: the caller.")
    cluster: str = Field(
        "", max_length=256, description="Cluster of the token; default: all clusters of the caller."
    )


class MadeToken(BaseModel):
    """The text of a token, which is shown only once."""

    token: str
    expiry_time: int


class TokensQuery(QueryParams):
    """Selects the user whose tokens are listed; only an admin sees those of others."""

    user: Word | None = None


@router.get("/tokens")
def tokens(caller: CurrentCaller, params: InQuery[TokensQuery]) -> list[TokenRow]:
    """The caller's tokens; for admins all tokens of their clusters, or those of one user."""
    services, principal = caller.services, caller.principal
    if principal.role is not TokenRole.ADMIN and params.user not in (None, principal.user):
        raise Problem(403, "only an admin may see the tokens of others")
    user = params.user if principal.role is TokenRole.ADMIN else principal.user
    with services.reader.connect() as db:
        found = token_store.list_tokens(db, user, principal.clusters)
    return [
        TokenRow(**as_answer_row(token._asdict()), made_by=token.maker, made_with=token.parent_id)
        for token in found
    ]


@router.post("/tokens", status_code=201)
def make_token(caller: CurrentCaller, new_token: NewToken) -> MadeToken:
    """Create a token. It never has more rights than its creator, nor outlives their token."""
    services, principal = caller.services, caller.principal
    _check_rights(principal, new_token)
    if not is_login(user := new_token.user or principal.user):
        raise Problem(422, "user: expected the name of one user")
    now = int(services.clock())
    longest = int(services.settings.auth.longest_token)
    expiry = now + min(new_token.lifetime_seconds, longest)
    if principal.expiry_time is not None:
        expiry = min(expiry, principal.expiry_time)
    cluster = new_token.cluster or (principal.clusters[0] if len(principal.clusters) == 1 else "")
    if not cluster and principal.clusters:
        raise Problem(422, f"cluster: expected one of {', '.join(principal.clusters)}")
    try:
        with services.writer.begin() as db:
            if not token_store.remaining(db, user, now):
                raise Problem(
                    409, f"{user} has {token_store.MAX_PER_USER} tokens; revoke some first"
                )
            text = token_store.create(
                db, user, new_token.role, new_token.label, now,
                cluster=cluster, expiry_time=expiry, maker=principal.as_maker(),
            )  # fmt: skip
    except sa.exc.IntegrityError as error:
        raise Problem(401, "the token of this request has been revoked") from error
    if user != principal.user or principal.token_creator:
        where = f"cluster {cluster}" if cluster else "all clusters"
        log_action(principal, f"made a token for {user} ({new_token.role}, {where})")
    return MadeToken(token=text, expiry_time=expiry * 1000)


def _check_rights(principal: Principal, new_token: NewToken) -> None:
    if principal.token_id is not None and principal.token_ancestors + 2 > MAX_TOKEN_CHAIN:
        raise Problem(403, f"tokens created with one another: at most {MAX_TOKEN_CHAIN} in a row")
    if new_token.cluster and principal.clusters and new_token.cluster not in principal.clusters:
        raise Problem(403, f"cluster: expected one of {', '.join(principal.clusters)}")
    if new_token.role not in grantable_roles(principal):
        raise Problem(
            403,
            f"a {principal.role} may not create a token with the role {new_token.role}"
            + (" in a browser" if principal.is_browser else ""),
        )
    if principal.role is TokenRole.ADMIN:
        return
    if new_token.user not in (None, principal.user):
        raise Problem(403, "only an admin may create a token for another user")


def grantable_roles(principal: Principal) -> list[TokenRole]:
    """The roles that the caller may give to a token: in a browser, lower ones than their own."""
    if principal.is_browser:
        lower = (role for role in TokenRole if role.at_most(principal.role) is role)
        return [role for role in lower if role is not principal.role] or [TokenRole.USER]
    if principal.role is TokenRole.ADMIN:
        return list(TokenRole)
    return list(dict.fromkeys((TokenRole.USER, principal.role)))


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(caller: CurrentCaller, token_id: RowId) -> None:
    """Revoke a token of the caller (admins: of their clusters) and those created with it."""
    services, principal = caller.services, caller.principal
    is_admin = principal.role is TokenRole.ADMIN and not principal.is_browser
    user = None if is_admin else principal.user
    with services.writer.begin() as db:
        revoked = token_store.revoke(db, token_id, user, principal.clusters)
    if not revoked:
        raise Problem(404, "there is no such token")
    others = [
        token for token in revoked if token.username != principal.user or principal.token_creator
    ]
    if others:
        named = ", ".join(f"{token.id} of {token.username}" for token in others)
        log_action(principal, f"revoked token {named}")
