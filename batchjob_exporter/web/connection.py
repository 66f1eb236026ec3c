"""The life of a connection, as a generator that never blocks.

It yields a `Wait` when the client is not ready, and an `HttpRequest` when one is complete; the
server resumes it when the socket is ready, or with the rendered response, and throws TimeoutError
into it at its deadline.
"""

import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from selectors import EVENT_READ, EVENT_WRITE
from typing import NamedTuple, TypeVar

from batchjob_exporter.web import message

T = TypeVar("T")

_RECEIVE_BYTES = 16384
_MAX_LINGER_BYTES = 1 << 20


class WouldBlock(Exception):
    """The client is not ready; `events` says what to wait for."""

    def __init__(self, events: int) -> None:
        super().__init__()
        self.events = events


class Stream:
    """What a connection needs of its socket; the methods raise WouldBlock or OSError."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def handshake(self) -> None:
        """Agree on encryption; done when it returns."""

    def receive(self, size: int) -> bytes:
        """Read at most `size` bytes; none: the client has closed its side."""
        try:
            return self.socket.recv(size)
        except BlockingIOError:
            raise WouldBlock(EVENT_READ) from None

    def send(self, data: memoryview) -> int:
        """Write what fits now; returns how much that was."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            raise WouldBlock(EVENT_WRITE) from None


class ClientTimeouts(NamedTuple):
    """The time a client may take, in seconds."""

    head: float = 10.0  # from the connection, or the first byte, to a complete request
    idle: float = 330.0  # between two requests; Prometheus itself disconnects after 5 minutes
    send: float = 30.0  # to receive the whole answer
    linger: float = 2.0  # to close, after an error


class Wait(NamedTuple):
    """Wait until the socket is ready for `events`, at most until `deadline` (monotonic)."""

    events: int
    deadline: float


class RenderedResponse(NamedTuple):
    """What the server sends to the client, and whether the connection stays open."""

    data: bytes | bytearray
    keep_alive: bool


ConnectionSteps = Generator[Wait | message.HttpRequest, RenderedResponse | None, None]
_Step = Generator[Wait, object, T]


@dataclass(eq=False)
class HttpConnection:
    """One connection; a client may have several."""

    stream: Stream
    client: str
    timeouts: ClientTimeouts
    clock: Callable[[], float] = time.monotonic
    unsent_bytes: int = 0
    """Bytes of an answer that the client has not read yet."""
    _received: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.socket = self.stream.socket
        self.steps: ConnectionSteps = self._serve()

    def resume(self) -> Wait | message.HttpRequest:
        return next(self.steps)

    def is_broken(self) -> bool:
        """Whether the client has closed the connection, so that an answer would be lost."""
        return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def has_client_left(self) -> bool:
        try:
            # Bypasses TLS, whose recv() does not accept flags.
            peeked = socket.socket.recv(self.socket, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not peeked

    def close(self) -> None:
        self.steps.close()
        self.socket.close()

    def _serve(self) -> ConnectionSteps:
        deadline = self.clock() + self.timeouts.head
        yield from self._retry_when_ready(self.stream.handshake, deadline)
        keep_alive = True
        while keep_alive:
            try:
                head = yield from self._read_head(deadline)
                if head is None:
                    return
                request = message.parse_request(head)
            except message.RequestRefused as refused:
                yield from self._send_all(
                    message.render_response(
                        message.text_response(refused.status, str(refused)), keep_alive=False
                    )
                )
                yield from self._linger()
                return
            answer = yield request
            assert answer is not None  # the server resumes the generator with the answer
            yield from self._send_all(answer.data)
            keep_alive = answer.keep_alive
            del answer  # an exposition is large, and the next request may take long to arrive
            deadline = self.clock() + self.timeouts.idle
        yield from self._linger()

    def _read_head(self, deadline: float) -> _Step[bytes | None]:
        """Request line and headers; None if the client left or sent nothing."""
        buffer = self._received
        scanned, request_begun = 0, False
        while (end := buffer.find(b"\r\n\r\n", scanned)) < 0 and len(buffer) <= message.HEAD_LIMIT:
            if buffer and not request_begun:
                request_begun, deadline = True, min(deadline, self.clock() + self.timeouts.head)
            scanned = max(len(buffer) - 3, 0)
            try:
                data = yield from self._retry_when_ready(
                    partial(self.stream.receive, _RECEIVE_BYTES), deadline
                )
            except TimeoutError:
                if not buffer:
                    return None
                raise message.RequestRefused(
                    HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive"
                ) from None
            if not data:
                return None
            # An empty line before a request is ignored, as RFC 9112 2.2 recommends.
            buffer += data if buffer else data.lstrip(b"\r\n")
        if not 0 <= end <= message.HEAD_LIMIT:
            raise message.RequestRefused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large"
            )
        head = bytes(buffer[:end])
        del buffer[: end + 4]
        return head

    def _send_all(self, data: bytes | bytearray) -> _Step[None]:
        deadline = self.clock() + self.timeouts.send
        rest = memoryview(data)
        while rest:
            self.unsent_bytes = len(rest)
            rest = rest[
                (yield from self._retry_when_ready(partial(self.stream.send, rest), deadline)) :
            ]
        self.unsent_bytes = 0

    def _linger(self) -> _Step[None]:
        """Read what the client still sends: a reset would make it lose the answer."""
        self.socket.shutdown(socket.SHUT_WR)
        deadline = self.clock() + self.timeouts.linger
        discarded_bytes = 0
        while discarded_bytes < _MAX_LINGER_BYTES:
            data = yield from self._retry_when_ready(
                partial(self.stream.receive, _RECEIVE_BYTES), deadline
            )
            if not data:
                return
            discarded_bytes += len(data)

    def _retry_when_ready(self, operation: Callable[[], T], deadline: float) -> _Step[T]:
        while True:
            try:
                return operation()
            except WouldBlock as blocked:
                yield Wait(blocked.events, deadline)
