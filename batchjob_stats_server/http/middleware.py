"""What happens to each request around the application, in one layer of ASGI.

The body is read, up to a maximum; the request waits for its turn among those of its address; then
rate limit, Host header and origin are checked. The answer is compressed, must begin within a time,
gets the headers that all answers have, and is counted.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchjob_stats_server.auth import peers
from batchjob_stats_server.http import problems
from batchjob_stats_server.services import Services
from batchjob_stats_server.turns import Turn, Turns

HEALTH_PATH = "/-/healthy"
"""Needs no turn, no thread and no place in a rate limit: who restarts the server asks for it."""

MAX_BODY_BYTES = 64 * 1024
MAX_QUERY_BYTES = 16 * 1024
_BODY_SECONDS = 10.0  # less than a connection has for the whole request
QUEUE_SECONDS = 15.0  # how long a request may wait for its turn and for a thread
_LEAST_PER_ADDRESS = 2  # requests of an address in progress, however many addresses there are

# Defaults for every answer. Caches must not store any: they do not know whose it is.
SECURITY_HEADERS = (
    (b"cache-control", b"private, no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
TLS_HEADERS = ((b"strict-transport-security", b"max-age=31536000"),)


class RequestLayer:
    """Limits on requests, and metrics of them."""

    body_seconds = _BODY_SECONDS

    def __init__(
        self, app: ASGIApp, services: Services, redirect: Callable[[Scope], ASGIApp | None]
    ) -> None:
        """`redirect`: answers a request in place of the application, or returns None."""
        # The length of a compressed answer can reveal a secret if the answer also contains text
        # chosen by an attacker (BREACH). No page or document contains such a secret: cookies are
        # headers, forms are protected by SameSite and Origin instead of a token, and a new API
        # token is shown only once.
        self._app = GZipMiddleware(app, minimum_size=2048, compresslevel=3)
        self._services = services
        self._redirect = redirect
        web, auth = services.settings.web, services.settings.auth
        self._hosts = peers.allowed_hosts(web)
        self._trusted = auth.trusted_peer
        self._metrics_from = auth.trusted_peer + web.metrics_from
        self._proxies = auth.trusted_peer or peers.ON_THIS_MACHINE
        self._server_url = urlsplit(services.settings.oidc.server_url)
        longest = max(web.query_timeout, services.settings.gate.timeout)
        self._seconds = longest + QUEUE_SECONDS
        self._turns = Turns(float("inf"), web.threads, fair_share=_LEAST_PER_ADDRESS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; its route is known afterwards."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if peers.is_https(scope, self._proxies, self._server_url):
            scope["scheme"] = "https"
        begin = time.monotonic()
        answer = _SentAnswer(scope, send)
        try:
            await self._answer_in_time(answer, scope, receive)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            metrics = self._services.metrics
            metrics.requests.labels(scope["method"], route, str(answer.status)).inc()
            metrics.request_seconds.labels(route).observe(time.monotonic() - begin)

    async def _answer_in_time(self, answer: "_SentAnswer", scope: Scope, receive: Receive) -> None:
        """The answer begins within a time, and before the server stops, or is a problem."""
        text = "the server is too busy to answer in time"
        try:
            async with asyncio.timeout(self._seconds) as limit:
                answer.when_it_begins.append(partial(limit.reschedule, None))
                await self._read_and_answer(answer, scope, receive)
            return
        except TimeoutError:
            if answer.has_begun:
                raise
        except asyncio.CancelledError:  # cancelled by uvicorn, which would log it and send a 500
            text = "the server is stopping"
            if answer.has_begun:
                return
        answer.when_it_begins.clear()  # the time and the turn have ended
        await problems.answer(503, text, {"Retry-After": "10"})(scope, receive, answer.send)

    async def _read_and_answer(self, answer: "_SentAnswer", scope: Scope, receive: Receive) -> None:
        """Read the request, and answer it when it is its address' turn."""
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await _read_body(receive)
        except TimeoutError:
            text = f"expected the body within {self.body_seconds:g} s"
            await problems.answer(408, text, {"Connection": "close"})(scope, receive, answer.send)
            return
        pieces: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_read_body() -> Message:
            return pieces.pop() if pieces else await receive()

        if scope["path"] == HEALTH_PATH:
            await self._check_and_answer(answer, scope, receive_read_body, body)
            return
        caller = peers.caller_of(scope, self._trusted)
        turn = self._turns.acquire(caller)
        try:
            if turn.done() or await _is_there(receive, turn):
                answer.when_it_begins.append(partial(self._turns.end, caller, turn))
                await self._check_and_answer(answer, scope, receive_read_body, body)
        finally:
            if not answer.has_begun:
                self._turns.end(caller, turn)

    async def _check_and_answer(
        self, answer: "_SentAnswer", scope: Scope, receive: Receive, body: bytes | None
    ) -> None:
        problem = self._problem(scope, body)
        if problem is not None:
            refusal = problems.answer(problem.status, problem.detail, problem.headers)
            await refusal(scope, receive, answer.send)
        elif b"token=" in scope["query_string"] and (response := self._redirect(scope)):
            await response(scope, receive, answer.send)
        else:
            await self._app(scope, receive, answer.send)

    def _problem(self, scope: Scope, body: bytes | None) -> problems.Problem | None:
        """Why the request is refused before the application sees it."""
        if len(scope["query_string"]) > MAX_QUERY_BYTES:
            return problems.Problem(414, f"expected at most {MAX_QUERY_BYTES} bytes of query")
        if body is None:
            return problems.Problem(413, f"expected at most {MAX_BODY_BYTES} bytes of body")
        exempt = self._metrics_from if scope["path"] == "/metrics" else self._trusted
        is_exempt = scope["path"] == HEALTH_PATH or peers.is_in(scope, exempt)
        wait = 0.0 if is_exempt else self._services.peer_rate.acquire(peers.peer_key(scope))
        if wait:
            self._services.metrics.rate_limited.labels("peer").inc()
            return problems.too_many_requests(wait)
        return peers.find_problem(scope, self._hosts)


class _SentAnswer:
    """Sends an answer with the headers that all of them have."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.status = 500
        self.has_begun = False
        self.when_it_begins: list[Callable[[], object]] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            for tell in self.when_it_begins:
                tell()
            headers = list(message.get("headers", ()))
            own = {name.lower() for name, _ in headers}
            ours = SECURITY_HEADERS + (TLS_HEADERS if self._scope["scheme"] == "https" else ())
            message["headers"] = headers + [each for each in ours if each[0] not in own]
        await self._send(message)


async def _is_there(receive: Receive, turn: Turn) -> bool:
    """Wait for the turn; False: the client has disconnected before."""
    leaving = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((turn, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    return turn.done()


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None if it is too large, and empty if the client disconnects.

    It is read to its end in any case: a client that still sends may never see an answer.
    """
    body = bytearray()
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            body += chunk
        more = message.get("more_body", False)
    return bytes(body) if size <= MAX_BODY_BYTES else None
