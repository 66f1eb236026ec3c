"""The life of a connection, as a generator that never waits itself.

It yields a `Wait` when the client is not ready, and a `Request` when one is complete; the server
resumes it when the socket is ready, or with the rendered response.
"""

import socket
import time
from collections.abc import Callable, Generator
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from batchjob_exporter.http.message import (
    HEAD_LIMIT,
    Refused,
    Request,
    parse,
    render,
    text,
)
from batchjob_exporter.http.stream import Stream, WouldBlock

T = TypeVar("T")

_CHUNK = 16384
_LINGER_BYTES = 1 << 20


class Patience(NamedTuple):
    """How long a client may take, in seconds."""

    head: float = 10.0  # from the connection, or the first byte, to a complete request
    idle: float = 330.0  # between two requests; Prometheus itself lets go after 5 minutes
    send: float = 30.0  # to take the whole answer
    linger: float = 2.0  # to close, after an error


class Wait(NamedTuple):
    """Wait until the socket is ready for `events`, at most until `deadline` (monotonic)."""

    events: int
    deadline: float


class TimedOut(Exception):
    """The client took too long; thrown into the generator at its deadline."""


Life = Generator[Wait | Request, bytes | None, None]
_Step = Generator[Wait, object, T]


class Connection:
    """One client."""

    def __init__(
        self,
        stream: Stream,
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._patience = patience
        self._clock = clock
        self._received = bytearray()
        self.unsent = 0  # bytes of an answer that the client has not yet taken
        self.life: Life = self._live()

    def go_on(self) -> Wait | Request:
        """Resume now that the socket is ready, or begin."""
        return next(self.life)

    def close(self) -> None:
        """End the connection, wherever it is."""
        self.life.close()
        self.socket.close()

    def _live(self) -> Life:
        deadline = self._clock() + self._patience.head
        yield from self._ready(self._stream.handshake, deadline)
        keep_alive = True
        while keep_alive:
            try:
                head = yield from self._head(deadline)
                if head is None:
                    return
                request = parse(head)
            except Refused as refused:
                answer = render(text(refused.status, str(refused)), keep_alive=False)
                yield from self._send(answer)
                yield from self._linger()
                return
            response = yield request
            assert isinstance(response, bytes)  # the server resumes a request with its answer
            yield from self._send(response)
            keep_alive = request.keep_alive
            deadline = self._clock() + self._patience.idle
        yield from self._linger()

    def _head(self, deadline: float) -> _Step[bytes | None]:
        """Request line and headers; None when the client left or never began."""
        buffer = self._received
        scanned, begun = 0, False
        while (end := buffer.find(b"\r\n\r\n", scanned)) < 0:
            if buffer and not begun:
                begun, deadline = True, min(deadline, self._clock() + self._patience.head)
            if len(buffer) > HEAD_LIMIT:
                raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large")
            scanned = max(len(buffer) - 3, 0)
            try:
                data = yield from self._ready(partial(self._stream.receive, _CHUNK), deadline)
            except TimedOut:
                if not buffer:
                    return None
                raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive") from None
            if not data:
                return None
            # An empty line before a request is let pass, as RFC 9112 2.2 advises.
            buffer += data if buffer else data.lstrip(b"\r\n")
        head = bytes(buffer[:end])
        del buffer[: end + 4]
        if len(head) > HEAD_LIMIT:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large")
        return head

    def _send(self, data: bytes) -> _Step[None]:
        deadline = self._clock() + self._patience.send
        rest = memoryview(data)
        while rest:
            self.unsent = len(rest)
            rest = rest[(yield from self._ready(partial(self._stream.send, rest), deadline)) :]
        self.unsent = 0

    def _linger(self) -> _Step[None]:
        """Take what the client still sends: a reset would make it lose the answer."""
        self.socket.shutdown(socket.SHUT_WR)
        deadline = self._clock() + self._patience.linger
        taken = 0
        while taken < _LINGER_BYTES:
            data = yield from self._ready(partial(self._stream.receive, _CHUNK), deadline)
            if not data:
                return
            taken += len(data)

    def _ready(self, operation: Callable[[], T], deadline: float) -> _Step[T]:
        while True:
            try:
                return operation()
            except WouldBlock as blocked:
                yield Wait(blocked.events, deadline)
