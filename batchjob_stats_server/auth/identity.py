"""Identifies the caller by a token, a client certificate, or a trusted peer's header.

Two of them at once are refused.
"""

import hmac
import logging
import re
from typing import Annotated, NamedTuple, cast

import sqlalchemy as sa
from fastapi import BackgroundTasks, Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from batchjob_stats_db.database import sessions, tokens
from batchjob_stats_db.database.access import EVERYTHING, Access, of_user
from batchjob_stats_db.database.engine import LazyConnection
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth import audit, peers
from batchjob_stats_server.auth.certificates import InvalidCertificate
from batchjob_stats_server.auth.groups import accounts_of
from batchjob_stats_server.auth.rights import (
    Principal,
    RightsLostError,
    Via,
    configured_role,
    of_line,
)
from batchjob_stats_server.http.problems import Problem, too_fast
from batchjob_stats_server.services import Given, Services

log = logging.getLogger(__name__)

_READING = ("GET", "HEAD")
TOKEN_PAGE = "/tokens/"  # noqa: S105 (a URL path)

LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,127}")


def _throttle(services: Services, known: Principal) -> None:
    if wait := services.rates.user.wait(known.who()):
        services.metrics.limited.labels("user").inc()
        raise too_fast(wait)


def _believed(
    request: Request, services: Services, later: BackgroundTasks, db: LazyConnection
) -> Principal:
    auth = services.settings.auth
    bearers = [
        value.partition(" ")[2].strip()
        for value in request.headers.getlist("authorization")
        if value.lower().split(" ", 1)[0] == "bearer"
    ]
    # Without a trusted peer, the header is ignored.
    named = request.headers.getlist(auth.user_header) if auth.trusted_peer else []
    shown = _certificate(request) if services.certificates else None
    if len(bearers) + len(named) + bool(shown) > 1:
        raise _refused(services, request, "ambiguous", "expected one identity, got several", 400)
    if named:
        return _named(request, services, named[0])
    if shown:
        return _shown(request, services, shown)
    if bearers:
        return _bearer(request, services, bearers[0], later, db)
    # A browser may send the cookie with requests that another site causes, so a request with it may
    # read. It may change things only from our own pages, whose Origin TrustedHosts has checked;
    # with a token, only from the page of tokens.
    text = request.cookies.get(cookie_name(request), "")
    reads, form = request.method in _READING, "origin" in request.headers
    if text.startswith(sessions.PREFIX) and (reads or form):
        return _in_session(request, services, text, db)
    if text and (reads or (form and f"{request.scope['path']}/".startswith(TOKEN_PAGE))):
        return _bearer(request, services, text, later, db)._replace(via="cookie")
    raise _refused(services, request, "none", "expected a token, or a user named by a proxy")


def _certificate(request: Request) -> str | None:
    """The peer's certificate (PEM), from ASGI's TLS extension."""
    chain = request.scope.get("extensions", {}).get("tls", {}).get("client_cert_chain")
    return chain[0] if chain else None


def _shown(request: Request, services: Services, pem: str) -> Principal:
    assert services.certificates is not None
    try:
        bearer = services.certificates.bearer(pem, services.clock())
    except InvalidCertificate as error:
        raise _refused(services, request, "certificate", str(error)) from error
    if not LOGIN.fullmatch(bearer.user):
        raise _refused(services, request, "name", "expected a certificate whose CN is a login")
    return Principal(
        bearer.user, bearer.role, "certificate",
        expiry_time=bearer.expiry_time, certificate=bearer.certificate,
    )  # fmt: skip


def cookie_name(request: HTTPConnection) -> str:
    """The name of the cookie with a token; it contains the port, since cookies ignore ports."""
    if request.url.scheme == "https":
        return "__Host-batchjob"
    return f"batchjob-{(request.scope.get('server') or ('', 0))[1]}"


def _bearer(
    request: Request, services: Services, text: str, later: BackgroundTasks, db: LazyConnection
) -> Principal:
    own = services.process_token
    if own and hmac.compare_digest(text.encode(), own.text.encode()):
        return Principal(own.user, own.role, "process", makes_tokens=own.makes_tokens)
    now = int(services.clock())
    token = tokens.find(db(), text, now)
    line = tokens.line(db(), token) if token else []
    if token is None or not line:
        raise _refused(services, request, "token", "the token is unknown, revoked or expired")
    try:
        known = of_line(line, _maker(services, line[-1]))
    except (RightsLostError, InvalidCertificate) as error:
        raise _refused(services, request, "maker", str(error)) from error
    if tokens.worth_noting(token, now):
        later.add_task(_note_use, services, token, now)
        if known.on_behalf:
            audit.did(known, f"used token {token.id}")
    return known


def _maker(services: Services, token: tokens.Token) -> Principal | None:
    """The maker of a token, with their present rights; None: the server.

    Raises NotBelieved if their certificate is no longer valid.
    """
    if token.maker_via == "certificate":
        if services.certificates is None:
            raise InvalidCertificate(
                "the token was created with a certificate that no longer identifies anybody"
            )
        services.certificates.check(token.maker_certificate, services.clock())
        return Principal(
            token.maker, TokenRole.ADMIN, "certificate"
        )  # no limit: the token's own role applies
    if token.maker:
        return _named_person(services, token.maker, "header")
    return None


def _note_use(services: Services, token: tokens.Token, now: int) -> None:
    """Runs after the answer, so that nobody waits while the poller locks the database."""
    try:
        with services.writer.begin() as db:
            tokens.used(db, token, now)
    except sa.exc.DBAPIError as error:
        log.warning("cannot record the use of token %d: %s", token.id, error.orig)


def _named(request: Request, services: Services, user: str) -> Principal:
    auth = services.settings.auth
    secrets = request.headers.getlist(auth.secret_header)
    known = len(secrets) == 1 and hmac.compare_digest(
        secrets[0].encode(), services.proxy_secret.encode()
    )
    if not (peers.within(request.scope, auth.trusted_peer) and services.proxy_secret and known):
        raise _refused(services, request, "peer", "the sender is not a trusted peer")
    if not LOGIN.fullmatch(user):
        raise _refused(services, request, "name", "expected the name of one user", 400)
    return _named_person(services, user, "header")


def _named_person(services: Services, user: str, via: Via) -> Principal:
    """A person named by a trusted peer or the provider, with their present rights."""
    auth = services.settings.auth
    role = configured_role(auth, user, services.groups.of(user))
    return Principal(user, role, via, auth.cluster)


def _in_session(request: Request, services: Services, text: str, db: LazyConnection) -> Principal:
    session = sessions.find(db(), text, int(services.clock()))
    if session is None or services.provider is None:
        raise _refused(services, request, "session", "the session has ended")
    return _named_person(services, session.username, "session")


def _refused(
    services: Services, request: Request, reason: str, detail: str, status: int = 401
) -> Problem:
    services.metrics.refused.labels(reason).inc()
    peer = request.client.host if request.client else "unknown"
    log.info("rejected %s %s from %s: %s", request.method, request.url.path, peer, detail)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Problem(status, detail, headers)


class Asker(NamedTuple):
    """The caller, and what they may see."""

    identity: Principal
    access: Access


def identified(
    request: Request, services: Services, later: BackgroundTasks, db: LazyConnection
) -> Asker:
    """Who asks, and what they may see; in a thread. Raises Problem."""
    known = _believed(request, services, later, db)
    _throttle(services, known)
    made = Asker(known, _access(services, known, db))
    request.state.asker = made
    return made


async def asker(request: Request, later: BackgroundTasks) -> Asker:
    """The same for a dependency; once in a request."""
    if (known := getattr(request.state, "asker", None)) is not None:
        return cast(Asker, known)
    services: Services = request.app.state.services

    def identify() -> Asker:
        with LazyConnection(services.reader) as db:
            return identified(request, services, later, db)

    return await run_in_threadpool(services.threads.short, identify)


async def known_if_any(request: Request) -> Principal | None:
    """The caller of a page that needs none; None for anybody who is not identified."""
    try:
        return (await asker(request, BackgroundTasks())).identity
    except (Problem, sa.exc.SQLAlchemyError):
        return None


async def _identity(request: Request, later: BackgroundTasks) -> Principal:
    return (await asker(request, later)).identity


async def _rights(request: Request, later: BackgroundTasks) -> Access:
    return (await asker(request, later)).access


Asking = Annotated[Asker, Depends(asker)]
Known = Annotated[Principal, Depends(_identity)]
Caller = Annotated[Access, Depends(_rights)]


def _scraper(request: Request, services: Given, later: BackgroundTasks) -> None:
    if peers.within(request.scope, services.settings.web.metrics_from):
        return
    with LazyConnection(services.reader) as db:
        known = _believed(request, services, later, db)
    _throttle(services, known)
    if known.role is TokenRole.USER or known.clusters:
        raise Problem(
            403,
            "only viewers and admins of all clusters, and addresses in web.metrics-from, may "
            "read this",
        )


Scraper = Annotated[None, Depends(_scraper)]


def _access(services: Services, known: Principal, db: LazyConnection) -> Access:
    if known.role is not TokenRole.USER:
        return Access(clusters=known.clusters) if known.clusters else EVERYTHING
    auth = services.settings.auth
    level = auth.slurm_admins.replace("none", "")
    more = accounts_of(auth, services.groups.of(known.user), known.clusters)
    parts = [of_user(db(), known.user, cluster, level, more) for cluster in known.clusters or ("",)]
    return Access(
        tuple(user for part in parts for user in part.users),
        tuple(account for part in parts for account in part.accounts),
        clusters=tuple(cluster for part in parts for cluster in part.clusters),
    )
