"""Connections: HTTP/1.1 of uvicorn, with the peer's certificate, limits and clear refusals."""

import asyncio
import socket
import ssl
import sys
from http import HTTPStatus
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from batchjob_stats_server.problems import MEDIA_TYPE, document

LARGEST_HEAD = 32 * 1024
"""Request line and headers, in bytes."""

_ARRIVAL_SECONDS = 20.0  # from the first byte of a request to its last
_LINGER_SECONDS = 5.0  # what a refused client still sends is read, or it may miss the answer
_UNREAD_MILLISECONDS = 30_000  # how long a client may not take what it is sent


class Connection(H11Protocol):
    """One client. It runs with uvicorn's HTTP/1.1 in Python, the one that is always there."""

    arrival_seconds = _ARRIVAL_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(  # type: ignore[override]  # uvicorn's own is as narrow
        self, transport: asyncio.Transport
    ) -> None:
        """Note who is there; the first request is awaited no longer than any other."""
        super().connection_made(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.app = _with_certificate(self.app, tls.getpeercert(binary_form=True))
        self._await(self.arrival_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Give a request that has begun its time, once."""
        if self._refused:
            return
        super().data_received(data)
        if not self._arriving():
            self._await(None)
        elif self._deadline is None:
            self._await(self.arrival_seconds)

    def _arriving(self) -> bool:
        begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        return begun or self.conn.their_state is h11.SEND_BODY or self._refused

    def _await(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        late = None if seconds is None else self.loop.call_later(seconds, self._late)
        self._deadline = late

    def _late(self) -> None:
        if self._refused:
            self.transport.close()
        elif self.conn.our_state is h11.IDLE and self._arriving():
            self._refuse(408, f"expected the whole request within {self.arrival_seconds:g} s")
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or too large to be looked at; called where h11's error is."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            line_ended = b"\n" in self.conn.trailing_data[0]
            msg = f"expected at most {LARGEST_HEAD} bytes of request line and headers"
            self._refuse(431 if line_ended else 414, msg)
        else:
            self._refuse(400, "this is no request of HTTP/1.1")

    def _refuse(self, status: int, detail: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer has begun; two would be taken for one
            return
        body = document(status, detail).model_dump_json().encode()
        headers = [
            ("content-type", MEDIA_TYPE), ("content-length", str(len(body))),
            ("cache-control", "no-store"), ("connection", "close"),
        ]  # fmt: skip
        phrase = HTTPStatus(status).phrase.encode()
        for event in (
            h11.Response(status_code=status, headers=headers, reason=phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._refused = True
        self._await(_LINGER_SECONDS)


def _with_certificate(app: Any, certificate: bytes | None) -> ASGIApp:
    """Tells the application of the peer's certificate, in the words of ASGI's TLS extension."""
    chain = [ssl.DER_cert_to_PEM_cert(certificate)] if certificate else []
    told = {"server_cert": None, "client_cert_chain": chain, "tls_version": None,
            "cipher_suite": None}  # fmt: skip

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {**scope.get("extensions", {}), "tls": told}
        await app(scope, receive, send)

    return wrapped


def set_up(listener: socket.socket) -> None:
    """What its connections inherit (tcp(7)).

    TCP_USER_TIMEOUT: the kernel ends those whose client takes nothing. TCP_NODELAY: asyncio sets it
    only on sockets that were made with the protocol's number; without it the body of a short
    answer waits 40 ms until the client has acknowledged the head.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
