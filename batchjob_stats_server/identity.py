"""Who asks: by a token, a client's certificate, or a trusted peer's word; never two, no guess."""

import hmac
import logging
import re
from typing import Annotated, Literal, NamedTuple, cast

import sqlalchemy as sa
from fastapi import BackgroundTasks, Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from batchjob_stats_db import tokens
from batchjob_stats_db.access import EVERYTHING, Access, of_user
from batchjob_stats_db.tokens import TokenRole
from batchjob_stats_server import peers
from batchjob_stats_server.certificates import NotBelieved
from batchjob_stats_server.options import AuthOptions
from batchjob_stats_server.problems import Problem, too_fast
from batchjob_stats_server.services import Given, Services

log = logging.getLogger(__name__)

_READING = ("GET", "HEAD")

LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,127}")


class Identity(NamedTuple):
    """A person, what they may do, and how we know."""

    user: str
    role: TokenRole
    via: Literal["token", "header", "certificate", "cookie"]
    clusters: tuple[str, ...] = ()  # on which the login is theirs; none named: all
    expiry_time: int | None = None


def _throttle(services: Services, known: Identity) -> None:
    if wait := services.rates.user.wait((known.user, known.clusters)):
        services.metrics.limited.labels("user").inc()
        raise too_fast(wait)


def _believed(request: Request, services: Services, later: BackgroundTasks) -> Identity:
    auth = services.settings.auth
    bearers = [
        value.partition(" ")[2].strip()
        for value in request.headers.getlist("authorization")
        if value.lower().split(" ", 1)[0] == "bearer"
    ]
    # Without a trusted peer the header means nothing, whoever sends it.
    named = request.headers.getlist(auth.user_header) if auth.trusted_peer else []
    shown = _certificate(request) if services.certificates else None
    if len(bearers) + len(named) + bool(shown) > 1:
        raise _refused(services, request, "ambiguous", "expected one identity, got several", 400)
    if named:
        return _named(request, services, named[0])
    if shown:
        return _shown(request, services, shown)
    if bearers:
        return _bearer(request, services, bearers[0], later)
    # A browser sends the cookie whoever makes it ask: it may read, and nothing else.
    if request.method in _READING and (text := request.cookies.get(cookie_name(request))):
        return _bearer(request, services, text, later)._replace(via="cookie")
    raise _refused(services, request, "none", "expected a token, or a user named by a proxy")


def _certificate(request: Request) -> str | None:
    """The peer's certificate (PEM), from ASGI's TLS extension."""
    chain = request.scope.get("extensions", {}).get("tls", {}).get("client_cert_chain")
    return chain[0] if chain else None


def _shown(request: Request, services: Services, pem: str) -> Identity:
    assert services.certificates is not None
    try:
        user, role = services.certificates.bearer(pem, services.clock())
    except NotBelieved as error:
        raise _refused(services, request, "certificate", str(error)) from error
    if not LOGIN.fullmatch(user):
        raise _refused(services, request, "name", "expected a certificate whose CN is a login")
    return Identity(user, role, "certificate")


def cookie_name(request: HTTPConnection) -> str:
    """The name of the cookie with a token; cookies know no ports, so the name does."""
    if request.url.scheme == "https":
        return "__Host-batchjob"
    return f"batchjob-{(request.scope.get('server') or ('', 0))[1]}"


def _bearer(request: Request, services: Services, text: str, later: BackgroundTasks) -> Identity:
    now = int(services.clock())
    with services.reader.connect() as db:
        token = tokens.find(db, text, now)
    if token is None:
        raise _refused(services, request, "token", "the token is unknown, revoked or expired")
    if tokens.worth_noting(token, now):
        later.add_task(_note_use, services, token, now)
    clusters = (token.cluster,) if token.cluster else ()
    return Identity(token.username, token.role, "token", clusters, token.expiry_time)


def _note_use(services: Services, token: tokens.Token, now: int) -> None:
    """After the answer: nobody waits for the poller to let go of the database."""
    try:
        with services.writer.begin() as db:
            tokens.used(db, token, now)
    except sa.exc.DBAPIError as error:
        log.warning("the use of token %d is not noted: %s", token.id, error.orig)


def _named(request: Request, services: Services, user: str) -> Identity:
    auth = services.settings.auth
    secrets = request.headers.getlist(auth.secret_header)
    known = len(secrets) == 1 and hmac.compare_digest(
        secrets[0].encode(), services.proxy_secret.encode()
    )
    if not (peers.within(request.scope, auth.trusted_peer) and services.proxy_secret and known):
        raise _refused(services, request, "peer", "not from a peer that may name users")
    if not LOGIN.fullmatch(user):
        raise _refused(services, request, "name", "expected the name of one user", 400)
    return Identity(user, _role(auth, user), "header", auth.cluster)


def _role(auth: AuthOptions, user: str) -> TokenRole:
    if user in auth.admin:
        return TokenRole.ADMIN
    return TokenRole.VIEWER if user in auth.viewer else TokenRole.USER


def _refused(
    services: Services, request: Request, reason: str, detail: str, status: int = 401
) -> Problem:
    services.metrics.refused.labels(reason).inc()
    peer = request.client.host if request.client else "unknown"
    log.info("refused %s %s from %s: %s", request.method, request.url.path, peer, detail)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Problem(status, detail, headers)


class _Asker(NamedTuple):
    identity: Identity
    access: Access


async def _asker(request: Request, later: BackgroundTasks) -> _Asker:
    """Both in one thread, once for a request, and for what one asks within a moment.

    Handing a request to a thread costs as much as the look-up.
    """
    if (known := getattr(request.state, "asker", None)) is not None:
        return cast(_Asker, known)
    services: Services = request.app.state.services

    def make() -> _Asker:
        known = _believed(request, services, later)
        return _Asker(known, _access(services, known))

    if services.certificates and _certificate(request):
        asker = await run_in_threadpool(make)  # one that is revoked counts from that moment
    else:
        asker = await services.askers.of(_credentials(request, services), make)
    _throttle(services, asker.identity)
    request.state.asker = asker
    return asker


def _credentials(request: Request, services: Services) -> tuple[object, ...]:
    """All that says who asks."""
    auth = services.settings.auth
    names = ("authorization", "cookie", auth.user_header, auth.secret_header)
    return (
        request.client and request.client.host,
        request.method in _READING,
        *(tuple(request.headers.getlist(name)) for name in names),
    )


async def _identity(request: Request, later: BackgroundTasks) -> Identity:
    return (await _asker(request, later)).identity


async def _rights(request: Request, later: BackgroundTasks) -> Access:
    return (await _asker(request, later)).access


Known = Annotated[Identity, Depends(_identity)]
Caller = Annotated[Access, Depends(_rights)]


def _scraper(request: Request, services: Given, later: BackgroundTasks) -> None:
    if peers.within(request.scope, services.settings.web.metrics_from):
        return
    known = _believed(request, services, later)
    _throttle(services, known)
    if known.role is TokenRole.USER:
        raise Problem(403, "only viewers, admins and the peers of web.metrics-from may read this")


Scraper = Annotated[None, Depends(_scraper)]


def _access(services: Services, known: Identity) -> Access:
    if known.role is not TokenRole.USER:
        return EVERYTHING
    level = services.settings.auth.slurm_admins.replace("none", "")
    with services.reader.connect() as db:
        parts = [of_user(db, known.user, cluster, level) for cluster in known.clusters or ("",)]
    return Access(
        tuple(user for part in parts for user in part.users),
        tuple(account for part in parts for account in part.accounts),
        clusters=tuple(cluster for part in parts for cluster in part.clusters),
    )
