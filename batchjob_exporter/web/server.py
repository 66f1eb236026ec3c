"""The server: one thread owns all sockets and passes requests to the workers.

No thread ever waits for a client, so a silent or slow one costs no more than a descriptor; TLS
handshakes are made step by step as well. Scarce resources are shared by address: whoever uses most
of them is refused first, so that a crowd cannot lock out others.
"""

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from batchjob.runtime.log import LogOnce
from batchjob.runtime.values import Network
from batchjob_exporter.web.addresses import allowed, client_of
from batchjob_exporter.web.auth import Web
from batchjob_exporter.web.connection import Answer, HttpConnection, Patience, TimedOut, Wait
from batchjob_exporter.web.message import HttpRequest, HttpResponse, render, text
from batchjob_exporter.web.workers import RequestWorkers

log = logging.getLogger(__name__)

CONNECTIONS = 128  # maximum; with TLS each takes 70 kB
UNSENT_BYTES = 32 << 20  # maximum size of all answers queued for slow clients
_ACCEPT_AT_ONCE = 64
_OVERLOADED = text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests", ("Retry-After", "5"))
_TOO_MANY = text(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", ("Retry-After", "1"))


class ConnectionLimits(NamedTuple):
    """The limits on clients."""

    requests: int = 40  # answered or queued at the same time, plus one per address; 0: no limit
    allow_from: tuple[Network, ...] = ()
    patience: Patience = Patience()


class HttpServer:
    """Serves `web` on the given listening sockets, which it closes at the end."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        web: Web,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  # immutable
    ) -> None:
        self._listeners = listeners
        self._web = web
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Connections waiting for their client, with deadlines; the one waiting longest comes first.
        self._waiting: dict[HttpConnection, float] = {}
        self._unanswered: Counter[str] = Counter()  # number of requests by client
        self._answered: deque[tuple[HttpConnection, Answer | None]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._once = LogOnce(log)
        self._loop = threading.Thread(target=self._run, name="http", daemon=True)
        self._workers = RequestWorkers(web, CONNECTIONS, self._deliver)

    def start(self) -> None:
        """Start accepting clients."""
        self._selector.register(self._alarm, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        for thread in (self._loop, *self._workers.threads):
            thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Refuse new clients, close idle connections, and give pending answers `seconds`."""
        if self._stopping:
            return
        self._stopping = True
        self._wake()
        until = time.monotonic() + seconds
        self._workers.close()
        threads = (*self._workers.threads, self._loop)
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.1))
        for listener in self._listeners:
            listener.close()
        # A hung thread may still write to the alarm, so its descriptor must not be reused.
        if not any(thread.is_alive() for thread in threads):
            os.close(self._alarm)

    def responds(self, seconds: float) -> bool:
        """Whether the thread that owns the sockets reacts within `seconds`."""
        turned = threading.Event()
        self._calls.append(turned.set)
        self._wake()
        return turned.wait(seconds)

    # The methods below run in the thread that owns the sockets.

    def _run(self) -> None:
        while not (self._stopping and not self._unanswered.total()):
            try:
                self._turn()
            except Exception as error:  # one client must not end the service for all
                self._once.warning(repr(error), "the server loop failed: %r", error)
                log.debug("the server loop", exc_info=True)
                time.sleep(0.05)  # the error may recur immediately
        self._let_go()
        self._selector.close()

    def _turn(self) -> None:
        """Wait for events and handle them."""
        for key, _ in self._selector.select(self._pause()):
            if isinstance(key.data, HttpConnection):
                # A connection dropped to make room may still have an event in this batch.
                if key.data in self._waiting:
                    self._resume(key.data, key.data.go_on)
            elif key.data is not None:
                self._accept(key.data)
            else:
                os.eventfd_read(self._alarm)
        self._hand_over()
        self._expire()
        if self._stopping:
            self._let_go()

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
            try:
                self._welcome(client, peer)
            except OSError as error:  # the client has already disconnected
                log.debug("%s: %s", peer, error)
                client.close()
            except Exception as error:  # one client must not delay the others
                self._once.warning(repr(error), "a client was rejected: %r", error)
                log.debug("%s was rejected", peer, exc_info=True)
                client.close()

    def _cannot_accept(self, error: OSError) -> None:
        """Without free descriptors, close a connection or pause, so that the loop does not spin."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            self._once.warning("accept", "cannot accept clients: %s", error.strerror)
            if not self._make_room():
                time.sleep(0.1)

    def _welcome(self, client: socket.socket, peer: str) -> None:
        if not allowed(peer, self._limits.allow_from):
            self._once.warning(peer, "refused %s: not in --web.allow-from", peer)
            client.close()
            return
        if len(self._waiting) + self._unanswered.total() >= CONNECTIONS and not self._make_room():
            client.close()
            return
        client.setblocking(False)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = self._web.wrap(client)
        connection = HttpConnection(stream, client_of(peer), self._limits.patience)
        self._resume(connection, connection.go_on)

    def _resume(self, connection: HttpConnection, step: Callable[[], Wait | HttpRequest]) -> None:
        """Resume the connection until it waits for its client or for an answer."""
        try:
            self._forget(connection)
            wanted = step()
            while isinstance(wanted, HttpRequest) and (refusal := self._ask(connection, wanted)):
                wanted = connection.life.send(refusal)
            if isinstance(wanted, Wait):
                self._selector.register(connection.socket, wanted.events, connection)
                self._waiting[connection] = wanted.deadline
                if connection.unsent:
                    self._bound_unsent()
        except (StopIteration, TimedOut):
            self._drop(connection)
        except OSError as error:
            log.debug("connection ended: %s", error)
            self._drop(connection)
        except Exception as error:  # one client must not end the server
            self._once.warning(repr(error), "a connection was dropped: %r", error)
            log.debug("a connection was dropped", exc_info=True)
            self._drop(connection)

    def _ask(self, connection: HttpConnection, request: HttpRequest) -> Answer | None:
        """Queue the request; returns the answer if there is no room for it."""
        client = connection.client
        if not self._web.within_rate():
            return self._refusal(request, _TOO_MANY)
        if self._web.unverified(request):
            if not self._workers.log_in(connection, request):
                return self._refusal(request, _TOO_MANY)
        else:
            # A client without a pending request is accepted even if the server is full: other
            # clients must not occupy all places.
            crowded = self._full() and self._unanswered[client]
            if crowded or not self._workers.answer(connection, request):
                return self._refusal(request, _OVERLOADED)
        self._unanswered[client] += 1
        return None

    def _full(self) -> bool:
        under_way = self._unanswered.total() - self._workers.waiting_log_ins().total()
        return 0 < self._limits.requests <= under_way

    def _refusal(self, request: HttpRequest, response: HttpResponse) -> Answer:
        """Close the connection of a client with more requests than it may queue."""
        with_body = request.method != "HEAD"
        response = self._web.with_headers(response)
        return Answer(render(response, keep_alive=False, with_body=with_body), keep_alive=False)

    def _hand_over(self) -> None:
        """Pass finished answers to their connections."""
        while self._answered:
            connection, answer = self._answered.popleft()
            self._answered_one(connection.client)
            if answer is None:
                self._drop(connection)
            else:
                self._resume(connection, partial(connection.life.send, answer))
        while self._calls:
            self._calls.popleft()()

    def _answered_one(self, client: str) -> None:
        self._unanswered[client] -= 1
        if not self._unanswered[client]:
            del self._unanswered[client]  # otherwise the counter grows with every client

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in [c for c, deadline in self._waiting.items() if deadline <= now]:
            if connection in self._waiting:
                self._resume(connection, partial(connection.life.throw, TimedOut()))

    def _forget(self, connection: HttpConnection) -> None:
        """The connection no longer waits."""
        if self._waiting.pop(connection, None) is not None:
            self._selector.unregister(connection.socket)

    def _drop(self, connection: HttpConnection) -> None:
        """Close the connection in any state."""
        self._waiting.pop(connection, None)
        with suppress(KeyError, ValueError, OSError):
            self._selector.unregister(connection.socket)
        with suppress(OSError):
            connection.close()

    def _make_room(self) -> bool:
        """Close a connection of the client that has most; False if there is none to close."""
        held = self._workers.waiting_log_ins()
        held.update(connection.client for connection in self._waiting)
        if not held:
            return False
        client = held.most_common(1)[0][0]
        self._once.warning(
            f"{client} crowd",
            "too many connections: those of %s that have waited longest are closed",
            client or "the unix socket",
        )
        longest = next((each for each in self._waiting if each.client == client), None)
        if longest is None:
            longest = self._workers.withdraw_log_in(client)
            if longest is None:
                return False  # a worker has just taken it
            self._answered_one(longest.client)
        self._drop(longest)
        return True

    def _bound_unsent(self) -> None:
        """Limit the memory of answers that clients do not read."""
        while sum(connection.unsent for connection in self._waiting) > UNSENT_BYTES:
            held: Counter[str] = Counter()
            for connection in self._waiting:
                held[connection.client] += connection.unsent
            client = held.most_common(1)[0][0]
            self._drop(next(c for c in self._waiting if c.client == client and c.unsent))

    def _let_go(self) -> None:
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._selector.unregister(listener)
                listener.close()
        for connection in list(self._waiting):
            self._drop(connection)

    def _deliver(self, connection: HttpConnection, answer: Answer | None) -> None:
        """Called by workers."""
        self._answered.append((connection, answer))
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._alarm, 1)
