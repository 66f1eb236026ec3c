"""Answers are kept by nobody but the caller, who may ask whether they still hold (RFC 9110, 9111).

A cache between a proxy and this server would not know whose rows it has.
"""

from collections.abc import Sequence

import xxhash
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchjob_stats_server.routes import PREFIX

PRIVATE = "private, no-cache"


class Revalidated:
    """Gives answers under the API an entity tag, and 304 to whoever has that already."""

    def __init__(self, app: ASGIApp, vary: Sequence[str]) -> None:
        self._app = app
        self._vary = ", ".join(vary)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold an answer until its body is there; one that comes in pieces passes as it is."""
        if scope["type"] != "http" or not scope["path"].startswith(f"{PREFIX}/"):
            await self._app(scope, receive, send)
            return
        held: Message | None = None

        async def tagging(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.setdefault("cache-control", PRIVATE)
                headers.add_vary_header(self._vary)
                if scope["method"] == "GET" and message["status"] == 200 and _kept(headers):
                    held = message
                    return
            elif held is not None:
                start, held = held, None
                if not message.get("more_body", False):
                    start, message = _tagged(Headers(scope=scope), start, message)
                await send(start)
            await send(message)

        await self._app(scope, receive, tagging)


def _kept(headers: Headers) -> bool:
    return "no-store" not in headers["cache-control"] and "etag" not in headers


def _tagged(asked: Headers, start: Message, body: Message) -> tuple[Message, Message]:
    headers = MutableHeaders(raw=start["headers"])
    tag = f'"{xxhash.xxh3_128_hexdigest(body.get("body", b""))}"'
    headers["etag"] = tag
    if not _has(asked.getlist("if-none-match"), tag):
        return start, body
    for name in ("content-length", "content-type"):
        if name in headers:
            del headers[name]
    return {**start, "status": 304}, {"type": "http.response.body", "body": b""}


def _has(given: Sequence[str], tag: str) -> bool:
    """By weak comparison: a proxy that compresses an answer weakens its tag."""
    tags = [each.strip().removeprefix("W/") for line in given for each in line.split(",")]
    return tag in tags or "*" in tags
