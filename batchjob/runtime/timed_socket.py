"""A socket with a deadline for all that is done with it.

Time-outs of the standard library and of `requests` restart with every byte, so a server that sends
one byte per second would hold them for ever.
"""

import io
import math
import socket
import ssl
import time
from typing import Any


class TimedSocket:
    """What `http.client` needs of a socket; all of it raises TimeoutError after `deadline`.

    `deadline`: in seconds of the monotonic clock, or infinite; each request may move it.
    """

    def __init__(self, raw: socket.socket, deadline: float) -> None:
        self._raw = raw
        self.deadline = deadline

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self, self._raw))

    def sendall(self, text: bytes) -> None:
        rest = memoryview(text)
        while rest:
            self.apply_deadline()
            rest = rest[self._raw.send(rest) :]

    def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from now on; the handshake as a whole has a time limit (_ssl.c)."""
        self.apply_deadline()
        self._raw = context.wrap_socket(self._raw, server_hostname=host)

    def apply_deadline(self) -> None:
        """Let the next operation take the time that is left; raises TimeoutError if none is."""
        seconds_left = self.deadline - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError
        self._raw.settimeout(None if seconds_left == math.inf else seconds_left)

    def keep_alive(self) -> None:
        """Let the kernel find out whether the peer's host is alive, while nothing arrives."""
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        """Close it, as soon as nobody reads from it."""
        self._raw.close()


class _TimedReader(io.RawIOBase):
    """The bytes that arrive in time; the socket stays open until this is closed, too."""

    def __init__(self, timed: TimedSocket, raw: socket.socket) -> None:
        super().__init__()
        self._timed = timed
        self._source = raw.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._timed.apply_deadline()
        return self._source.readinto(buffer)

    def close(self) -> None:
        self._source.close()
        super().close()


def connect(host: str, port: int, unix_socket: str, deadline: float) -> TimedSocket:
    """Connect to the first address that accepts, or to a UNIX socket; raises OSError."""
    if unix_socket:
        addresses: list[tuple[Any, ...]] = [
            (socket.AF_UNIX, socket.SOCK_STREAM, 0, "", unix_socket)
        ]
    else:
        addresses = [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    last_error: OSError = OSError("no address")
    for family, kind, protocol, _, address in addresses:
        raw = socket.socket(family, kind, protocol)
        timed = TimedSocket(raw, deadline)
        try:
            timed.apply_deadline()
            raw.connect(address)
        except OSError as error:
            raw.close()
            last_error = error
        else:
            if not unix_socket:  # the body of a request follows its head at once
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return timed
    raise last_error
