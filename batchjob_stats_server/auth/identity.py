"""Identifies the caller by a token, a client certificate, or a trusted peer's header.

Two of them at once are refused.
"""

import hashlib
import hmac
import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import sqlalchemy as sa
from fastapi import BackgroundTasks, Depends, Request
from fastapi.concurrency import run_in_threadpool

from batchjob.runtime.logins import is_login
from batchjob_stats_db.database import sessions, tokens
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterAccount, of_user
from batchjob_stats_db.database.engine import LazyConnection, lazy_connection
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth import browser_session, peers
from batchjob_stats_server.auth.rights import (
    CredentialError,
    Principal,
    Via,
    configured_role,
    log_action,
    log_question,
    principal_of_token,
)
from batchjob_stats_server.http.problems import SAFE_METHODS, Problem, too_many_requests
from batchjob_stats_server.options import SECRET_HEADER
from batchjob_stats_server.services import CurrentServices, Services

log = logging.getLogger(__name__)

FORM_PATHS = ("/tokens/", "/messages/")
"""Pages with forms that change something."""

T = TypeVar("T")


class _Claim(NamedTuple):
    """Who a request says that it is from: in one way, of which nothing has been looked up yet."""

    via: Via
    text: str  # a user, a certificate (PEM), a token or a cookie


def _claim_of(request: Request, services: Services) -> _Claim:
    """Raises CredentialError."""
    auth = services.settings.auth
    bearers = [
        value.partition(" ")[2].strip()
        for value in request.headers.getlist("authorization")
        if value.lower().split(" ", 1)[0] == "bearer"
    ]
    # Without a trusted peer, the header is ignored.
    users = request.headers.getlist(auth.user_header) if auth.trusted_peer else []
    # From ASGI's TLS extension, as PEM.
    chain = request.scope.get("extensions", {}).get("tls", {}).get("client_cert_chain")
    pem = chain[0] if chain and services.certificates.are_accepted else None
    if len(bearers) + len(users) + bool(pem) > 1:
        raise CredentialError("expected one identity, got several", "ambiguous", 400)
    if users:
        return _Claim("header", _user_of_header(request, services, users[0]))
    if pem:
        return _Claim("certificate", pem)
    if bearers:
        return _Claim("token", bearers[0])
    # A browser may send the cookie with requests that another site causes, so the cookie alone
    # allows only reading. Changes must come from a form of our own pages, whose Origin the
    # request layer has checked.
    text = browser_session.session_cookie(request)
    is_form = "origin" in request.headers and f"{request.scope['path']}/".startswith(FORM_PATHS)
    if not (text and (request.method in SAFE_METHODS or is_form)):
        needed = "sign in first: make a token on the page Tokens and put it into $BATCHJOB_TOKEN"
        raise CredentialError(needed, "none")
    return _Claim("cookie", text)


def _authenticate(
    claim: _Claim,
    request: Request,
    services: Services,
    background_tasks: BackgroundTasks,
    db: LazyConnection,
) -> Principal:
    """The caller; raises CredentialError."""
    if claim.via == "header":
        return _principal_of(services, claim.text, "header")
    if claim.via == "certificate":
        principal = services.certificates.verify(claim.text, services.clock())
        if not is_login(principal.user):
            raise CredentialError("expected a certificate whose CN is a login", "name")
        return principal
    if claim.via == "token":
        return _authenticate_by_token(services, claim.text, background_tasks, db)
    return _authenticate_by_cookie(request, services, claim.text, background_tasks, db)


def _authenticate_by_cookie(
    request: Request,
    services: Services,
    text: str,
    background_tasks: BackgroundTasks,
    db: LazyConnection,
) -> Principal:
    if text.startswith(sessions.PREFIX):
        user = sessions.user_of(db(), text, int(services.clock()))
        if user is None or services.provider is None:
            raise CredentialError("the session has ended", "session")
        return _principal_of(services, user, "session")
    session = browser_session.unseal(text)
    if session is None:
        raise CredentialError("the session has ended; sign in again", "session")
    if services.process_token and not browser_session.is_from_own_user(session, request):
        raise CredentialError("the session is another user's", "session")
    principal = _authenticate_by_token(services, session[0], background_tasks, db)
    return principal._replace(via="cookie")


def _authenticate_by_token(
    services: Services, text: str, background_tasks: BackgroundTasks, db: LazyConnection
) -> Principal:
    process = services.process_token
    if process and hmac.compare_digest(text.encode(), process.text.encode()):
        return Principal(process.user, process.role, "process", process=process.process)
    now = int(services.clock())
    token = tokens.find(db(), text, now)
    chain = tokens.with_ancestors(db(), token) if token else []
    if token is None or not chain:
        raise CredentialError("the token is unknown, revoked or expired", "token")
    try:
        principal = principal_of_token(chain, _token_maker(services, chain[-1]))
    except CredentialError as error:
        raise CredentialError(str(error), "maker") from error
    if tokens.should_record_use(token, now):
        background_tasks.add_task(_record_token_use, services, token, now)
        if principal.token_creator:
            log_action(principal, f"used token {token.id}")
    return principal


def _token_maker(services: Services, token: tokens.Token) -> Principal | None:
    """The maker of a token, with their current rights; None: the server.

    Raises CredentialError if their certificate is no longer valid.
    """
    if token.maker_via == "certificate":
        services.certificates.check_issuer_and_revocation(token.maker_certificate, services.clock())
        # No limit: the token's own role applies.
        return Principal(token.maker, TokenRole.ADMIN, "certificate")
    if token.maker_via == "process":
        process = services.process_token
        if process is None or process.process != token.maker_certificate:
            raise CredentialError("the token ended with the `batchjob up` that created it")
        return Principal(token.maker, process.role, "process")
    if token.maker:
        return _principal_of(services, token.maker, "header")
    return None


def _record_token_use(services: Services, token: tokens.Token, now: int) -> None:
    """Runs after the answer, so that nobody waits while the poller locks the database."""
    try:
        with services.writer.begin() as db:
            tokens.record_use(db, token, now)
    except sa.exc.DBAPIError as error:
        log.warning("cannot record the use of token %d: %s", token.id, error.orig)


def _user_of_header(request: Request, services: Services, user: str) -> str:
    auth = services.settings.auth
    secrets = request.headers.getlist(SECRET_HEADER)
    is_secret_right = len(secrets) == 1 and hmac.compare_digest(
        secrets[0].encode(), services.proxy_secret.encode()
    )
    is_trusted = peers.is_in(request.scope, auth.trusted_peer)
    if not (is_trusted and services.proxy_secret and is_secret_right):
        raise CredentialError("the sender is not a trusted peer", "peer")
    with suppress(UnicodeError):  # in UTF-8, which has no bytes of its own for other characters
        user = user.encode("latin-1").decode()
    if not is_login(user):
        raise CredentialError("expected the name of one user", "name", 400)
    return user


def _principal_of(services: Services, user: str, via: Via) -> Principal:
    """A person named by a trusted peer or the provider, with their present rights."""
    auth = services.settings.auth
    role = configured_role(auth, user, _groups_of(services, user))
    return Principal(user, role, via, auth.cluster)


@dataclass(frozen=True)
class Caller:
    """The caller of a route, what they may see, and the services that answer them."""

    services: Services
    principal: Principal
    access: Access


_KNOWN_SECONDS = 60  # time changes rights as well: a token expires, a group's log-in gets old
_MAX_KNOWN = 1000


class _Known(NamedTuple):
    """A caller, what was read for them, and of which version of the database."""

    version: Hashable
    time: float
    caller: Caller
    read: Any

    def is_still_true(self, version: Hashable, services: Services) -> bool:
        now, expiry_time = services.clock(), self.caller.principal.expiry_time
        return (
            self.version == version
            and self.caller.services is services
            and self.time <= now < self.time + _KNOWN_SECONDS
            and (expiry_time is None or now < expiry_time)
        )


async def identify(
    request: Request,
    background_tasks: BackgroundTasks,
    read: Callable[[Caller, LazyConnection], T],
) -> tuple[Caller, T]:
    """The caller, and what `read` finds for them in the database. Raises Problem.

    Both are kept while the SQLite database is unchanged: asking a thread costs more than most
    answers. A cookie and a certificate are looked at for each request, since files say whose they
    are and which ones are revoked.
    """
    state, services = request.app.state, cast(Services, request.app.state.services)
    known: dict[Hashable, _Known] = state.known_callers
    try:
        claim = _claim_of(request, services)
    except CredentialError as error:
        raise _refusal(request, services, error) from error
    key = claim.via, hashlib.sha256(claim.text.encode()).digest(), read
    version = state.changes.count() if claim.via in ("header", "token") else None
    if version is not None and key in known and known[key].is_still_true(version, services):
        caller = request.state.caller = known[key].caller
        _check_rate(services, caller.principal)
        return caller, known[key].read
    now = services.clock()

    def look_up() -> tuple[Caller, T]:
        with lazy_connection(services.reader) as db:
            try:
                principal = _authenticate(claim, request, services, background_tasks, db)
            except CredentialError as error:
                raise _refusal(request, services, error) from error
            _check_rate(services, principal)
            caller = Caller(services, principal, _access_of(services, principal, db))
            return caller, read(caller, db)

    caller, found = await run_in_threadpool(services.threads.run_short, look_up)
    request.state.caller = caller
    if version is not None and not caller.principal.certificate:
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[key] = _Known(version, now, caller, found)
    return caller, found


def _refusal(request: Request, services: Services, error: CredentialError) -> Problem:
    services.metrics.refused.labels(error.reason).inc()
    peer = request.client.host if request.client else "unknown"
    log.info("rejected %s %s from %s: %s", request.method, request.url.path, peer, error)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return Problem(error.status, str(error), headers)


def _check_rate(services: Services, principal: Principal) -> None:
    if wait := services.user_rate.acquire(principal.person_key()):
        services.metrics.rate_limited.labels("user").inc()
        raise too_many_requests(wait)


async def current_caller(request: Request, background_tasks: BackgroundTasks) -> Caller:
    """The caller as a dependency; identified once per request."""
    if (caller := getattr(request.state, "caller", None)) is not None:
        return cast(Caller, caller)
    return (await identify(request, background_tasks, _nothing_more))[0]


def _nothing_more(_caller: Caller, _db: LazyConnection) -> None:
    return None


async def principal_or_none(request: Request) -> Principal | None:
    """The caller of a page that is open to everybody; None if they cannot be identified."""
    try:
        return (await current_caller(request, BackgroundTasks())).principal
    except (Problem, sa.exc.SQLAlchemyError):
        return None


CurrentCaller = Annotated[Caller, Depends(current_caller)]


async def audit_question(request: Request, caller: CurrentCaller) -> None:
    asked = request.query_params.multi_items()
    log_question(caller.principal, caller.access, request.url.path, asked)


async def _check_scraper(
    request: Request, services: CurrentServices, background_tasks: BackgroundTasks
) -> None:
    if peers.is_in(request.scope, services.settings.web.metrics_from):
        return
    principal = (await current_caller(request, background_tasks)).principal
    if principal.role is TokenRole.USER or principal.clusters:
        raise Problem(
            403,
            "only viewers and admins of all clusters, and addresses in web.metrics-from, may "
            "read this",
        )


Scraper = Annotated[None, Depends(_check_scraper)]


_GROUPS_SECONDS = 30 * 86400  # how long the groups of a log-in apply to the tokens of its user


def _groups_of(services: Services, user: str) -> frozenset[str]:
    """The groups that the provider named at the last log-in, if any option depends on them."""
    auth = services.settings.auth
    is_needed = auth.admin_group or auth.viewer_group or auth.account_group
    if not (is_needed and services.settings.oidc.issuer):
        return frozenset()
    with services.reader.connect() as db:
        return sessions.groups_of(db, user, int(services.clock()) - _GROUPS_SECONDS)


def _access_of(services: Services, principal: Principal, db: LazyConnection) -> Access:
    if principal.role is not TokenRole.USER:
        return Access(clusters=principal.clusters) if principal.clusters else EVERYTHING
    auth = services.settings.auth
    level = auth.slurm_admins.replace("none", "")
    groups = _groups_of(services, principal.user)
    # Groups belong to the users of `auth.cluster`: a namesake on another cluster has no part in
    # them, as a principal of some clusters has none on the others.
    more = [
        ClusterAccount(each.cluster, each.account)
        for each in auth.account_group
        if each.group in groups
        and (not principal.clusters or each.cluster in principal.clusters)
        and (not auth.cluster or each.cluster in auth.cluster)
    ]
    parts = [
        of_user(db(), principal.user, cluster, level, more)
        for cluster in principal.clusters or ("",)
    ]
    return Access(
        tuple(user for part in parts for user in part.users),
        tuple(account for part in parts for account in part.accounts),
        clusters=tuple(cluster for part in parts for cluster in part.clusters),
    )
