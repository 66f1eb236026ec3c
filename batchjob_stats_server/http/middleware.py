"""Limits on requests, and metrics of them: plain ASGI, around the application."""

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchjob_stats_server.auth import peers
from batchjob_stats_server.http import problems
from batchjob_stats_server.http.turns import HEALTH_PATH
from batchjob_stats_server.self_metrics import ServerMetrics
from batchjob_stats_server.services import Services

MAX_BODY_BYTES = 64 * 1024
MAX_QUERY_BYTES = 16 * 1024
_BODY_SECONDS = 10.0  # less than a connection has for the whole request

# Defaults for every answer. Caches must not store any: they do not know whose it is.
SECURITY_HEADERS = (
    (b"cache-control", b"private, no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
TLS_HEADERS = ((b"strict-transport-security", b"max-age=31536000"),)


class RequestSizeLimit:
    """Refuses requests that are too large, before the application sees them."""

    body_seconds = _BODY_SECONDS

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body here, up to its maximum, and pass it on as one piece."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["query_string"]) > MAX_QUERY_BYTES:
            await problems.answer(414, f"expected at most {MAX_QUERY_BYTES} bytes of query")(
                scope, receive, send
            )
            return
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await _read_body(receive)
        except TimeoutError:
            refusal = problems.answer(
                408, f"expected the body within {self.body_seconds:g} s", {"Connection": "close"}
            )
            await refusal(scope, receive, send)
            return
        if body is None:
            refusal = problems.answer(413, f"expected at most {MAX_BODY_BYTES} bytes of body")
            await refusal(scope, receive, send)
            return
        pieces: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_read_body() -> Message:
            return pieces.pop() if pieces else await receive()

        await self._app(scope, receive_read_body, send)


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


class RateLimitMiddleware:
    """Limits the request rate of an address; trusted peers, which forward for many, are exempt."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        wait = self._acquire(scope) if scope["type"] == "http" else 0.0
        if wait:
            self._services.metrics.rate_limited.labels("peer").inc()
            await problems.answer_to(problems.too_many_requests(wait))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _acquire(self, scope: Scope) -> float:
        settings = self._services.settings
        exempt = settings.auth.trusted_peer
        if scope["path"] == "/metrics":
            exempt += settings.web.metrics_from
        if scope["path"] == HEALTH_PATH or peers.is_in(scope, exempt):
            return 0.0
        return self._services.rates.peer.acquire(peers.peer_key(scope))


class RequestTimeout:
    """An answer must begin within a time, and before the server stops, or is a problem."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; the time ends with the first byte of the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_in_time(message: Message) -> None:
            nonlocal started
            started = True
            limit.reschedule(None)
            await send(message)

        text = "the server is too busy to answer in time"
        try:
            async with asyncio.timeout(self._seconds) as limit:
                await self._app(scope, receive, send_in_time)
            return
        except TimeoutError:
            if started:
                raise
        except asyncio.CancelledError:  # cancelled by uvicorn, which would log it and send a 500
            text = "the server is stopping"
            if started:
                return
        await problems.answer(503, text, {"Retry-After": "10"})(scope, receive, send)


class RequestMetrics:
    """Counts and times the answers by route, and adds the headers that all of them have."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; the route is known afterwards."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        start = time.monotonic()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                own = {name.lower() for name, _ in headers}
                ours = SECURITY_HEADERS + (TLS_HEADERS if scope["scheme"] == "https" else ())
                message["headers"] = headers + [each for each in ours if each[0] not in own]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.requests.labels(scope["method"], route, str(status)).inc()
            self._metrics.request_seconds.labels(route).observe(time.monotonic() - start)
