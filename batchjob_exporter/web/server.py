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

from batchjob.runtime.log import LogOnce
from batchjob.runtime.values import Network
from batchjob_exporter.web.addresses import client_key, is_allowed
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.connection import ClientTimeouts, HttpConnection, RenderedResponse, Wait
from batchjob_exporter.web.message import HttpRequest, text_response
from batchjob_exporter.web.workers import HEALTH_PATHS, RequestWorkers, render_answer

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128  # maximum; with TLS each takes 70 kB
MAX_UNSENT_BYTES = 32 << 20  # maximum size of all answers queued for slow clients
_MAX_ACCEPTS_AT_ONCE = 64
_OVERLOADED = text_response(
    HTTPStatus.SERVICE_UNAVAILABLE, "too many requests", ("Retry-After", "5")
)
_TOO_MANY = text_response(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", ("Retry-After", "1"))


class HttpServer:
    """Serves `web` on the given listening sockets, which it closes at the end."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        web: WebAccess,
        max_requests: int = 40,
        allow_from: tuple[Network, ...] = (),
        timeouts: ClientTimeouts = ClientTimeouts(),  # noqa: B008  # immutable
    ) -> None:
        """`max_requests`: answered or queued at a time, plus one per address; 0: no limit."""
        self._listeners = listeners
        self._web = web
        self._max_requests = max_requests
        self._allow_from = allow_from
        self._timeouts = timeouts
        self._selector = selectors.DefaultSelector()
        self._wakeup_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Connections waiting for their client, with deadlines; the one waiting longest comes first.
        self._waiting: dict[HttpConnection, float] = {}
        self._unanswered: Counter[str] = Counter()  # number of requests by client
        self._answers: deque[tuple[HttpConnection, RenderedResponse | None]] = deque()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._once = LogOnce(log)
        self._loop = threading.Thread(target=self._run, name="http", daemon=True)
        self._workers = RequestWorkers(web, MAX_CONNECTIONS, self._add_answer)

    def start(self) -> None:
        self._selector.register(self._wakeup_descriptor, selectors.EVENT_READ)
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
        deadline = time.monotonic() + seconds
        self._workers.close()
        threads = (*self._workers.threads, self._loop)
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
        for listener in self._listeners:
            listener.close()
        # A hung thread may still wake the loop, so its descriptor must not be reused.
        if not any(thread.is_alive() for thread in threads):
            os.close(self._wakeup_descriptor)

    def responds(self, seconds: float) -> bool:
        """Whether the thread that owns the sockets reacts within `seconds`."""
        responded = threading.Event()
        self._callbacks.append(responded.set)
        self._wake()
        return responded.wait(seconds)

    # The methods below run in the thread that owns the sockets.

    def _run(self) -> None:
        while not (self._stopping and not self._unanswered.total()):
            try:
                self._process_events()
            except Exception as error:  # one client must not end the service for all
                self._once.warning(repr(error), "the server loop failed: %r", error)
                log.debug("the server loop", exc_info=True)
                time.sleep(0.05)  # the error may recur immediately
        self._close_all()
        self._selector.close()

    def _process_events(self) -> None:
        # Until the first deadline of a client; without clients, as long as it takes.
        deadline = min(self._waiting.values(), default=None)
        timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, HttpConnection):
                # A connection dropped to make room may still have an event in this batch.
                if key.data in self._waiting:
                    self._resume(key.data, key.data.resume)
            elif key.data is not None:
                self._accept(key.data)
            else:
                os.eventfd_read(self._wakeup_descriptor)
        self._send_answers()
        self._expire_connections()
        if self._stopping:
            self._close_all()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_MAX_ACCEPTS_AT_ONCE):
            try:
                client, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._recover_from_accept_error(error)
                return
            peer = address[0] if listener.family != socket.AF_UNIX else ""
            try:
                self._admit(client, peer)
            except OSError as error:  # the client has already disconnected
                log.debug("%s: %s", peer, error)
                client.close()
            except Exception as error:  # one client must not delay the others
                self._once.warning(repr(error), "a client was rejected: %r", error)
                log.debug("%s was rejected", peer, exc_info=True)
                client.close()

    def _recover_from_accept_error(self, error: OSError) -> None:
        """Without free descriptors, close a connection or pause, so that the loop does not spin."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            self._once.warning("accept", "cannot accept clients: %s", error.strerror)
            if not self._close_longest_waiting():
                time.sleep(0.1)

    def _admit(self, client: socket.socket, peer: str) -> None:
        if not is_allowed(peer, self._allow_from):
            self._once.warning(peer, "refused %s: not in --web.allow-from", peer)
            client.close()
            return
        if (
            len(self._waiting) + self._unanswered.total() >= MAX_CONNECTIONS
            and not self._close_longest_waiting()
        ):
            client.close()
            return
        client.setblocking(False)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = HttpConnection(self._web.wrap(client), client_key(peer), self._timeouts)
        self._resume(connection, connection.resume)

    def _resume(self, connection: HttpConnection, step: Callable[[], Wait | HttpRequest]) -> None:
        """Resume the connection until it waits for its client or for an answer."""
        try:
            if self._waiting.pop(connection, None) is not None:
                self._selector.unregister(connection.socket)
            yielded = step()
            may_answer = True  # once: a client that pipelines must not occupy this thread
            while isinstance(yielded, HttpRequest) and (
                answer := self._answer_or_queue(connection, yielded, may_answer)
            ):
                may_answer = False
                yielded = connection.steps.send(answer)
            if isinstance(yielded, Wait):
                self._selector.register(connection.socket, yielded.events, connection)
                self._waiting[connection] = yielded.deadline
                if connection.unsent_bytes:
                    self._limit_unsent_bytes()
        except (StopIteration, TimeoutError):
            self._drop(connection)
        except OSError as error:
            log.debug("connection ended: %s", error)
            self._drop(connection)
        except Exception as error:  # one client must not end the server
            self._once.warning(repr(error), "a connection was dropped: %r", error)
            log.debug("a connection was dropped", exc_info=True)
            self._drop(connection)

    def _answer_or_queue(
        self, connection: HttpConnection, request: HttpRequest, may_answer: bool
    ) -> RenderedResponse | None:
        """Queue the request; returns the answer if there is no room, or if it needs no worker."""
        client, queued = connection.client, (connection, request)
        if self._web.needs_verification(request):
            if not self._workers.log_ins.put(client, queued):
                return render_answer(_TOO_MANY, request, keep_alive=False)
        elif may_answer and request.path in HEALTH_PATHS:
            return self._workers.build_answer(request)
        else:
            # A client without a pending request is accepted even if the server is full: other
            # clients must not occupy all places.
            being_answered = self._unanswered.total() - self._workers.log_ins.lengths().total()
            is_full = 0 < self._max_requests <= being_answered
            refused = is_full and self._unanswered[client]
            if refused or not self._workers.requests.put(client, queued):
                return render_answer(_OVERLOADED, request, keep_alive=False)
        self._unanswered[client] += 1
        return None

    def _send_answers(self) -> None:
        while self._answers:
            connection, answer = self._answers.popleft()
            self._count_answered(connection.client)
            if answer is None:
                self._drop(connection)
            else:
                self._resume(connection, partial(connection.steps.send, answer))
        while self._callbacks:
            self._callbacks.popleft()()

    def _count_answered(self, client: str) -> None:
        self._unanswered[client] -= 1
        if not self._unanswered[client]:
            del self._unanswered[client]  # otherwise the counter grows with every client

    def _expire_connections(self) -> None:
        now = time.monotonic()
        for connection in [c for c, deadline in self._waiting.items() if deadline <= now]:
            if connection in self._waiting:
                self._resume(connection, partial(connection.steps.throw, TimeoutError()))

    def _drop(self, connection: HttpConnection) -> None:
        self._waiting.pop(connection, None)
        with suppress(KeyError, ValueError, OSError):
            self._selector.unregister(connection.socket)
        with suppress(OSError):
            connection.close()

    def _close_longest_waiting(self) -> bool:
        """Close a connection of the client that has most; False if there is none to close."""
        connections = self._workers.log_ins.lengths()
        connections.update(connection.client for connection in self._waiting)
        if not connections:
            return False
        client = connections.most_common(1)[0][0]
        self._once.warning(
            f"{client} crowd",
            "too many connections: those of %s that have waited longest are closed",
            client or "the unix socket",
        )
        longest = next((each for each in self._waiting if each.client == client), None)
        if longest is None:
            withdrawn = self._workers.log_ins.withdraw(client)
            if withdrawn is None:
                return False  # a worker has just taken it
            longest, _ = withdrawn
            self._count_answered(longest.client)
        self._drop(longest)
        return True

    def _limit_unsent_bytes(self) -> None:
        """Limit the memory of answers that clients do not read."""
        while sum(connection.unsent_bytes for connection in self._waiting) > MAX_UNSENT_BYTES:
            unsent_bytes: Counter[str] = Counter()
            for connection in self._waiting:
                unsent_bytes[connection.client] += connection.unsent_bytes
            client = unsent_bytes.most_common(1)[0][0]
            self._drop(next(c for c in self._waiting if c.client == client and c.unsent_bytes))

    def _close_all(self) -> None:
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._selector.unregister(listener)
                listener.close()
        for connection in list(self._waiting):
            self._drop(connection)

    def _add_answer(self, connection: HttpConnection, answer: RenderedResponse | None) -> None:
        self._answers.append((connection, answer))
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup_descriptor, 1)
