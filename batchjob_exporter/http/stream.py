"""A client's socket, read and written without ever waiting; `tls` has the same for TLS."""

import socket
from selectors import EVENT_READ, EVENT_WRITE
from typing import Protocol


class WouldBlock(Exception):
    """The client is not ready; `events` says for what to wait."""

    def __init__(self, events: int) -> None:
        super().__init__()
        self.events = events


class Stream(Protocol):
    """What a connection needs of its socket; the calls raise WouldBlock or OSError."""

    @property
    def socket(self) -> socket.socket:
        """For the selector, and to close."""

    def handshake(self) -> None:
        """Agree on encryption; done when it returns."""

    def receive(self, size: int) -> bytes:
        """Read at most `size` bytes; none: the client has closed its side."""

    def send(self, data: memoryview) -> int:
        """Write what fits now; returns how much that was."""


class PlainStream:
    """HTTP without encryption."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def handshake(self) -> None:
        """Nothing to agree on."""

    def receive(self, size: int) -> bytes:
        """Read what is there."""
        try:
            return self.socket.recv(size)
        except BlockingIOError:
            raise WouldBlock(EVENT_READ) from None

    def send(self, data: memoryview) -> int:
        """Write what fits into the socket's buffer."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            raise WouldBlock(EVENT_WRITE) from None
