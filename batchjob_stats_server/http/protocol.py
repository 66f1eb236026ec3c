"""Connections: HTTP/1.1 of uvicorn, with the peer's certificate, limits and clear refusals."""

import asyncio
import contextlib
import re
import socket
import ssl
import sys
from collections.abc import Hashable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from batchjob_stats_server.http.problems import MEDIA_TYPE, document
from batchjob_stats_server.http.turns import RequestTurns, Turn

if TYPE_CHECKING:
    from batchjob_stats_server.http.accept import OpenConnections

LARGEST_HEAD = 32 * 1024
"""Request line and headers, in bytes."""

_ARRIVAL_SECONDS = 20.0  # from the first byte of a request to its last
_LINGER_SECONDS = 5.0  # what a refused client still sends is read, or it may miss the answer
_UNREAD_MILLISECONDS = 30_000  # how long a client may not take what it is sent


_HEAD_END = re.compile(rb"\n\r?\n")
_FOLDED = re.compile(rb"\n[ \t]")
_BARE_LF = re.compile(rb"(?<!\r)\n")


class StrictHttp(h11.Connection):
    """h11 without what servers and proxies may read in two ways.

    RFC 9112 lets a server refuse all of it: bare LF (section 2.2), folded lines (5.2), and
    Content-Length beside Transfer-Encoding (6.1).
    """

    def next_event(self) -> Any:
        """The same as h11's; the head of a request is looked at first."""
        if self.their_state is h11.IDLE:
            _check_head(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("Content-Length beside Transfer-Encoding")
        return event


def _check_head(received: bytes) -> None:
    end = _HEAD_END.search(received)
    head = received[: end.end()] if end else received
    if len(head) > LARGEST_HEAD:
        raise h11.RemoteProtocolError("head too large", error_status_hint=431)
    if _FOLDED.search(head) or _BARE_LF.search(head):
        raise h11.RemoteProtocolError("bare LF or folded header line")


class Connection(H11Protocol):
    """One client. It runs with uvicorn's HTTP/1.1 in Python, the one that is always there."""

    arrival_seconds = _ARRIVAL_SECONDS
    open_connections: "OpenConnections | None" = None
    turns: RequestTurns | None = None
    peer: Hashable = None
    _turn: Turn | None = None
    accepted: socket.socket | None = None
    _deadline: asyncio.TimerHandle | None = None
    _refused = False
    _dropped = False

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = StrictHttp(h11.SERVER, LARGEST_HEAD)

    def waits(self) -> bool:
        """Whether the client is to do something: send a request, or take the answer to one."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return True
        return bool(self.flow.write_paused)

    def drop(self) -> None:
        """End it at once, even while TLS begins."""
        self._dropped = True
        if self.transport is not None:
            self.transport.abort()
        elif self.accepted is not None:  # `connection_made` comes yet, or TLS fails
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)

    def connection_made(  # type: ignore[override]  # uvicorn's own is as narrow
        self, transport: asyncio.Transport
    ) -> None:
        """Note who is there; the first request is awaited no longer than any other."""
        super().connection_made(transport)
        if self._dropped:
            transport.abort()
            return
        self.app = self._by_turns(self.app)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.app = _with_certificate(self.app, tls.getpeercert(binary_form=True))
        self._await(self.arrival_seconds)

    def _by_turns(self, app: Any) -> ASGIApp:
        """The application, asked when this peer has its turn, which ends as the answer begins.

        Meanwhile a request whose body arrives slowly has none, so that nobody waits for its client.
        """

        async def begun(scope: Scope, receive: Receive, send: Send) -> None:
            cycle, turns = self.cycle, self.turns
            if turns is None:
                await app(scope, receive, send)
                return
            has_turn = await self._come(turns)

            def leave() -> None:
                nonlocal has_turn
                if has_turn:
                    has_turn = False
                    turns.leave(self.peer)

            async def receiving() -> Message:
                nonlocal has_turn
                if not (cycle.more_body and has_turn):
                    return await receive()
                leave()
                message = await receive()
                has_turn = await self._come(turns)
                return message

            async def answering(message: Message) -> None:
                leave()
                await send(message)

            if not has_turn:
                return  # the client has left
            try:
                await app(scope, receiving, answering)
            finally:
                leave()

        return begun

    async def _come(self, turns: RequestTurns) -> bool:
        self._turn = turns.come(self.peer)
        return await self._turn

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._await(None)
        if self.open_connections is not None:
            self.open_connections.leave(self)
        if self.turns is not None and self._turn is not None:
            self.turns.withdraw(self.peer, self._turn)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """The client may have the next request, or make room for others."""
        super().on_response_complete()
        if self.open_connections is not None:
            self.open_connections.answered(self)

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
            self._refuse(400, "not an HTTP/1.1 request")

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
