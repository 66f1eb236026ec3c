"""The server: one thread owns all sockets, a few workers make the answers.

No thread ever waits for a client, so a silent or slow one costs a descriptor and nothing else;
TLS handshakes too are made piece by piece, as the client sends its part.
"""

import errno
import logging
import os
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from batchjob.logs import Once
from batchjob.values import Network
from batchjob_exporter.http.addresses import allowed
from batchjob_exporter.http.connection import Connection, Patience, TimedOut, Wait
from batchjob_exporter.http.message import Request, Response, compressed, render, text
from batchjob_exporter.http.stream import PlainStream, Stream

log = logging.getLogger(__name__)

_WORKERS = 4
_CONNECTIONS = 256
_UNSENT_BYTES = 32 << 20  # of answers that clients are slow to take
_ACCEPT_AT_ONCE = 64
_UNAVAILABLE = text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests", ("Retry-After", "5"))
_FAILED = text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the exporter's log")


class Limits(NamedTuple):
    """What the server grants its clients."""

    requests: int = 40  # answered or queued at once; 0: no limit
    allow_from: tuple[Network, ...] = ()
    patience: Patience = Patience()


class Server:
    """Serves `answer` on the given listening sockets, which it closes in the end."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        answer: Callable[[Request], Response],
        limits: Limits = Limits(),  # noqa: B008  # immutable
        wrap: Callable[[socket.socket], Stream] = PlainStream,
    ) -> None:
        """`wrap` makes a client's stream: with TLS or without."""
        self._listeners = listeners
        self._answer = answer
        self._limits = limits
        self._wrap = wrap
        self._selector = selectors.DefaultSelector()
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Connections that wait for their client, the longest waiting one first.
        self._waiting: dict[Connection, float] = {}
        self._asked: queue.SimpleQueue[tuple[Connection, Request] | None] = queue.SimpleQueue()
        self._answered: deque[tuple[Connection, bytes]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._unanswered = 0
        self._stopping = False
        self._once = Once(log)
        self._loop = threading.Thread(target=self._run, name="http", daemon=True)
        self._workers = [
            threading.Thread(target=self._work, name=f"http-worker-{number}", daemon=True)
            for number in range(_WORKERS)
        ]

    def start(self) -> None:
        """Begin to accept clients."""
        self._selector.register(self._alarm, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        for thread in (self._loop, *self._workers):
            thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Refuse new clients, let go of idle ones, and give answers under way `seconds`."""
        if self._stopping:
            return
        self._stopping = True
        self._wake()
        until = time.monotonic() + seconds
        for _ in self._workers:
            self._asked.put(None)
        for thread in (*self._workers, self._loop):
            thread.join(max(until - time.monotonic(), 0.1))
        # A thread that hangs may still write to the alarm; its number must not become another's.
        if not any(thread.is_alive() for thread in (*self._workers, self._loop)):
            os.close(self._alarm)

    def responds(self, seconds: float) -> bool:
        """Whether the thread that owns the sockets turns within `seconds`."""
        turned = threading.Event()
        self._calls.append(turned.set)
        self._wake()
        return turned.wait(seconds)

    # The thread of the sockets.

    def _run(self) -> None:
        while not (self._stopping and self._unanswered == 0):
            for key, _ in self._selector.select(self._pause()):
                if isinstance(key.data, Connection):
                    self._forget(key.data)
                    self._resume(key.data, key.data.go_on)
                elif key.data is not None:
                    self._accept(key.data)
                else:
                    os.eventfd_read(self._alarm)
            self._hand_over()
            self._expire()
            if self._stopping:
                self._let_go()
        self._let_go()
        self._selector.close()

    def _pause(self) -> float | None:
        """Seconds until the first deadline of a client; None without clients."""
        if not self._waiting:
            return None
        return max(min(self._waiting.values()) - time.monotonic(), 0.0)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                client, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            peer = address[0] if listener.family != socket.AF_UNIX else ""
            self._welcome(client, peer)

    def _cannot_accept(self, error: OSError) -> None:
        """Out of descriptors: make room, or pause, so that the loop does not spin."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            self._once.warning("accept", "cannot accept clients: %s", error.strerror)
            if not self._drop_longest_waiting():
                time.sleep(0.1)

    def _welcome(self, client: socket.socket, peer: str) -> None:
        if not allowed(peer, self._limits.allow_from):
            self._once.warning(peer, "refused %s: not in --web.allow-from", peer)
            client.close()
            return
        if len(self._waiting) >= _CONNECTIONS:
            self._drop_longest_waiting()
        try:
            client.setblocking(False)
            if client.family != socket.AF_UNIX:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self._wrap(client), self._limits.patience)
        except OSError as error:
            log.debug("%s: %s", peer, error)
            client.close()
            return
        self._resume(connection, connection.go_on)

    def _resume(self, connection: Connection, step: Callable[[], Wait | Request]) -> None:
        """Let the connection go on until it waits for its client or for an answer."""
        try:
            wanted = step()
            while isinstance(wanted, Request) and self._full():
                refusal = render(_UNAVAILABLE, keep_alive=wanted.keep_alive)
                wanted = connection.life.send(refusal)
            self._park(connection, wanted)
        except (StopIteration, TimedOut):
            connection.close()
        except OSError as error:
            log.debug("connection ended: %s", error)
            connection.close()
        except Exception:  # one client must not end the server
            log.exception("connection dropped")
            connection.close()

    def _full(self) -> bool:
        return 0 < self._limits.requests <= self._unanswered

    def _park(self, connection: Connection, wanted: Wait | Request) -> None:
        if isinstance(wanted, Wait):
            self._selector.register(connection.socket, wanted.events, connection)
            self._waiting[connection] = wanted.deadline
            if connection.unsent:
                self._bound_unsent()
        else:
            self._unanswered += 1
            self._asked.put((connection, wanted))

    def _hand_over(self) -> None:
        """Send the answers that are ready."""
        while self._answered:
            connection, response = self._answered.popleft()
            self._unanswered -= 1
            self._resume(connection, partial(connection.life.send, response))
        while self._calls:
            self._calls.popleft()()

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in [c for c, deadline in self._waiting.items() if deadline <= now]:
            self._forget(connection)
            self._resume(connection, partial(connection.life.throw, TimedOut()))

    def _forget(self, connection: Connection) -> None:
        del self._waiting[connection]
        self._selector.unregister(connection.socket)

    def _drop_longest_waiting(self) -> bool:
        for connection in self._waiting:
            self._forget(connection)
            connection.close()
            return True
        return False

    def _bound_unsent(self) -> None:
        """Clients that ask and do not read must not fill the memory with answers."""
        slow = [connection for connection in self._waiting if connection.unsent]
        unsent = sum(connection.unsent for connection in slow)
        for connection in slow:
            if unsent <= _UNSENT_BYTES:
                return
            unsent -= connection.unsent
            self._forget(connection)
            connection.close()

    def _let_go(self) -> None:
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._selector.unregister(listener)
                listener.close()
        while self._drop_longest_waiting():
            pass

    def _wake(self) -> None:
        os.eventfd_write(self._alarm, 1)

    # The workers.

    def _work(self) -> None:
        while (job := self._asked.get()) is not None:
            connection, request = job
            response = self._respond(request)
            self._answered.append((connection, response))
            self._wake()

    def _respond(self, request: Request) -> bytes:
        begin = time.perf_counter()
        try:
            response = self._answer(request)
            response = compressed(response, request.headers.get("accept-encoding", ""))
        except Exception:  # one request must not end the worker
            log.exception("%s %s", request.method, request.path)
            response = _FAILED
        log.debug(
            "%s %s %d %d bytes %.1f ms",
            request.method,
            request.path,
            response.status.value,
            len(response.body),
            1000 * (time.perf_counter() - begin),
        )
        return render(response, keep_alive=request.keep_alive, with_body=request.method != "HEAD")
