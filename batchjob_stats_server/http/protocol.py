"""Connections: uvicorn's HTTP/1.1, with the peer's certificate, limits and clear refusals."""

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batchjob_stats_server.http.problems import MEDIA_TYPE, document

if TYPE_CHECKING:
    from batchjob_stats_server.http.accept import OpenConnections

MAX_HEAD_BYTES = 32 * 1024
"""Request line and headers, in bytes."""

NOT_HTTP = "not an HTTP/1.1 request"

_ARRIVAL_SECONDS = 20.0  # from the first byte of a request to its last
LINGER_SECONDS = 5.0  # how long data of a refused client is read, so that it gets the answer
UNREAD_MILLISECONDS = 30_000  # how long a client may leave an answer unread

# Strict, since a proxy may parse other requests differently: other versions, targets with a host,
# more spaces.
_REQUEST_LINE = re.compile(rb"(?!CONNECT)[A-Z]+ /[!-\"$-~]* HTTP/1\.[01]\r\n")
_SINGLE_HEADERS = frozenset(
    {b"transfer-encoding", b"content-length", b"host", b"content-type", b"origin"}
)
_UPGRADE = re.compile(rb"upgrade:", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """One client, with uvicorn's HTTP/1.1 without what servers and proxies may parse differently.

    llhttp refuses bare LF, folded lines and Content-Length beside Transfer-Encoding (RFC 9112,
    sections 2.2, 5.2 and 6.1). It is given one request at a time: what follows waits as bytes for
    the answer, so that a client cannot have many requests in memory.
    """

    arrival_seconds = _ARRIVAL_SECONDS
    open_connections: "OpenConnections | None" = None
    accepted: socket.socket | None = None
    _deadline: asyncio.TimerHandle | None = None
    _extensions: Mapping[str, Any] | None = None  # of ASGI, for the scope of each request
    _refused = False
    _dropped = False

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._received = bytearray()  # not parsed yet
        self._framing_bytes = 0  # bytes of the head so far, or since the last piece of the body
        self._in_body = False
        self._body_bytes_left: int | None = None  # remaining bytes of the body; None: it is chunked

    def is_answering(self) -> bool:
        """Whether a request awaits its answer, or the rest of it."""
        return self.cycle is not None and not self.cycle.response_complete

    def is_receiving(self) -> bool:
        """Whether part of a request has arrived."""
        return self._in_body or bool(
            self._framing_bytes or (self._received and not self.is_answering())
        )

    def _next_piece(self) -> bytes:
        """A part of a request: a line of its head or of chunks, or some of its body."""
        line = self._received.find(b"\n") + 1
        if not self._in_body:
            return self._head_line(line)
        if self._body_bytes_left is None:
            if self._framing_bytes > MAX_HEAD_BYTES:
                self.refuse(
                    431, f"expected at most {MAX_HEAD_BYTES} bytes between pieces of a body"
                )
            return self._take(line or len(self._received))
        size = min(self._body_bytes_left, len(self._received))
        self._body_bytes_left -= size
        return self._take(size)

    def _head_line(self, size: int) -> bytes:
        if self.is_answering() and self._received:
            self.flow.pause_reading()
            return b""
        if self._framing_bytes + (size or len(self._received)) > MAX_HEAD_BYTES:
            detail = f"expected at most {MAX_HEAD_BYTES} bytes of request line and headers"
            self.refuse(431 if self._framing_bytes else 414, detail)
        elif self._received and not self._framing_bytes:
            whole = _REQUEST_LINE.match(self._received)
            if not (whole or (not size and self._received[:1].isupper())):
                self.refuse(400, NOT_HTTP)
        return self._take(size)

    def _take(self, size: int) -> bytes:
        piece = bytes(self._received[:size])
        del self._received[:size]
        self._framing_bytes += len(piece)
        return piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header; trailers are ignored."""
        if not self._in_body:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Start answering; only chunks are decoded."""
        headers = dict(self.headers)
        names = [name for name, _ in self.headers if name in _SINGLE_HEADERS]
        if len(names) > len(set(names)):
            raise ValueError("a header that must be alone")
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise ValueError("Transfer-Encoding")
        self._body_bytes_left = None if coding else int(headers.get(b"content-length", 0))
        self._in_body, self._framing_bytes = True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._framing_bytes = False, 0
        super().on_message_complete()

    def is_waiting(self) -> bool:
        """Whether the client must act: send a request, or read the answer to one."""
        return not self.is_answering() or self.cycle.more_body or bool(self.flow.write_paused)

    def drop(self) -> None:
        """Close the connection at once, even during a TLS handshake."""
        self._dropped = True
        if self.transport is not None:
            self.transport.abort()
        elif self.accepted is not None:  # `connection_made` has not been called yet, or TLS failed
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)

    def connection_made(  # type: ignore[override]  # uvicorn's own is as narrow
        self, transport: asyncio.Transport
    ) -> None:
        """Record the peer; the time-out of the first request is that of any other."""
        super().connection_made(transport)
        if self._dropped:
            transport.abort()
            return
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._extensions = {"tls": _tls_extension(tls.getpeercert(binary_form=True))}
        self._set_deadline(self.arrival_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        if self.open_connections is not None:
            self.open_connections.remove(self)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A new request, with the peer's certificate."""
        super().on_message_begin()
        if self._extensions is not None:
            self.scope["extensions"] = dict(self._extensions)

    def on_response_complete(self) -> None:
        """Process the client's next request, or let the connection be dropped for others."""
        super().on_response_complete()
        if self.open_connections is not None:
            self.open_connections.mark_waiting(self)
        self._read()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; the first byte of a request starts its time-out."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._received += data
        self._read()

    def _read(self) -> None:
        """Parse what has been received, up to the end of a request."""
        while not self.transport.is_closing() and (piece := self._next_piece()):
            # An upgrade may be ignored (RFC 9110, section 7.8). With the header, llhttp would not
            # read the body.
            if self._in_body or not _UPGRADE.match(piece):
                super().data_received(piece)
        if not (self.is_receiving() or self._refused):
            self._set_deadline(None)
        elif self._deadline is None:
            self._set_deadline(self.arrival_seconds)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = (
            None if seconds is None else self.loop.call_later(seconds, self._close_late_client)
        )

    def _close_late_client(self) -> None:
        if self._refused:
            self.transport.close()
        elif self.is_receiving() and not self.is_answering():
            self.refuse(408, f"expected the whole request within {self.arrival_seconds:g} s")
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn passes its own message)
        """Refuse what is not HTTP."""
        self.refuse(400, NOT_HTTP)

    def refuse(self, status: int, detail: str) -> None:
        """Answer with a problem, unless an answer has begun: two would be taken for one."""
        self._received.clear()
        if self._in_body and self.cycle.response_started:
            self.transport.close()
            return
        if self._in_body:
            self.cycle.disconnected = True  # the application's answer would be too late
            self.cycle.message_event.set()
        body = document(status, detail).model_dump_json()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(body.encode())}", "cache-control: no-store", "connection: close",
        )  # fmt: skip
        self.transport.write("\r\n".join((*head, "", body)).encode())
        self._refused = True
        self._set_deadline(LINGER_SECONDS)


def _tls_extension(certificate: bytes | None) -> Mapping[str, Any]:
    """The peer's certificate, as ASGI's TLS extension defines it."""
    chain = [ssl.DER_cert_to_PEM_cert(certificate)] if certificate else []
    return {
        "server_cert": None, "client_cert_chain": chain, "tls_version": None, "cipher_suite": None
    }  # fmt: skip


def set_socket_options(listener: socket.socket) -> None:
    """Set the options that its connections inherit (tcp(7)).

    TCP_USER_TIMEOUT: the kernel ends connections whose client reads nothing. TCP_NODELAY: asyncio
    sets it only on sockets created with the protocol's number; without it, the body of a short
    answer waits 40 ms until the client has acknowledged the head.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
