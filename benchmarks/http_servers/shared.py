"""What both other servers grant, and how they answer."""

import socket
import ssl
import threading
from collections import Counter

from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.message import HttpRequest, compress, render_response

HEAD_SECONDS, IDLE_SECONDS, SEND_SECONDS = 10.0, 330.0, 30.0
HEAD_BYTES = 16384
_CONNECTIONS, _OF_AN_ADDRESS = 128, 64


class Places:
    """Connections that there may be; those of an address beyond its part are refused."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, address: str) -> bool:
        """Whether there is one."""
        with self._lock:
            if self._held.total() >= _CONNECTIONS or self._held[address] >= _OF_AN_ADDRESS:
                return False
            self._held[address] += 1
            return True

    def leave(self, address: str) -> None:
        """It is free again."""
        with self._lock:
            self._held[address] -= 1


def answer(web: WebAccess, log_ins: threading.Lock, request: HttpRequest) -> bytes | bytearray:
    """The whole answer; one password is checked at a time."""
    if web.needs_verification(request):
        with log_ins:
            web.verify(request)
    response = compress(web.answer(request), request.headers.get("accept-encoding", ""))
    return render_response(
        response, keep_alive=request.keep_alive, with_body=request.method != "HEAD"
    )


def context_of(web: WebAccess) -> ssl.SSLContext | None:
    """What the server encrypts with: the stream of a new client has it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = web.wrap(ours)
        found = getattr(stream.socket, "context", None)
        stream.socket.close()
    return found
