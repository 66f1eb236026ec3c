"""The threads that answer requests, and the queues of waiting requests.

Clients are served in turn. A thread of its own checks passwords, one at a time.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from http import HTTPStatus

from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.connection import HttpConnection, RenderedResponse
from batchjob_exporter.web.message import (
    HttpRequest,
    HttpResponse,
    compress,
    render_response,
    text_response,
)

log = logging.getLogger(__name__)

HEALTH_PATHS = ("/-/healthy", "/-/ready")
"""Answered at once: hung collectors may occupy all workers, and a watchdog would restart all."""
_WORKER_COUNT = 4
_MAX_WAITING_LOG_INS = 8  # requests per address that may wait for a password check
_INTERNAL_ERROR = text_response(
    HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the exporter's log"
)

_QueuedRequest = tuple[HttpConnection, HttpRequest]


class RoundRobinQueue:
    """Serves clients in turn, however much one of them puts into it.

    Each client has a queue of its own; `get` takes the first item of each queue in turn.
    """

    def __init__(self, max_waiting: int) -> None:
        """`max_waiting`: the maximum number of waiting items of one client."""
        self._max_waiting = max_waiting
        # No queue is empty; the first one is served next.
        self._queues: dict[Hashable, deque[_QueuedRequest]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def lengths(self) -> Counter[Hashable]:
        with self._changed:
            return Counter({client: len(queue) for client, queue in self._queues.items()})

    def put(self, client: Hashable, item: _QueuedRequest) -> bool:
        """Append an item; False if the client's queue is full or all are closed."""
        with self._changed:
            queue = self._queues.get(client, deque())
            if self._closed or len(queue) >= self._max_waiting:
                return False
            queue.append(item)
            self._queues[client] = queue
            self._changed.notify()
            return True

    def get(self) -> _QueuedRequest | None:
        """Wait for the next item; None when the queue is closed and empty."""
        with self._changed:
            while not self._queues:
                if self._closed:
                    return None
                self._changed.wait()
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            item = queue.popleft()
            if queue:
                self._queues[client] = queue  # moves to the end
            return item

    def withdraw(self, client: Hashable) -> _QueuedRequest | None:
        """Take back the last item that the client put; None if none of its items waits."""
        with self._changed:
            queue = self._queues.get(client)
            if queue is None:
                return None
            item = queue.pop()
            if not queue:
                del self._queues[client]
            return item

    def close(self) -> None:
        """Accept no more items; `get` returns None when all have been taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def render_answer(
    response: HttpResponse, request: HttpRequest, keep_alive: bool
) -> RenderedResponse:
    data = render_response(response, keep_alive=keep_alive, with_body=request.method != "HEAD")
    return RenderedResponse(data, keep_alive)


class RequestWorkers:
    """Answers requests in threads, which call `deliver`, with None if there is no answer."""

    def __init__(
        self,
        web: WebAccess,
        max_waiting: int,
        deliver: Callable[[HttpConnection, RenderedResponse | None], None],
    ) -> None:
        """`max_waiting`: maximum number of waiting requests of one client."""
        self._web = web
        self._max_waiting = max_waiting
        self._deliver = deliver
        # Requests whose password must be checked first, and all others.
        self.log_ins = RoundRobinQueue(_MAX_WAITING_LOG_INS)
        self.requests = RoundRobinQueue(max_waiting)
        self._closed = False
        self.threads = [
            threading.Thread(
                target=self._answer_requests, name=f"http-worker-{number}", daemon=True
            )
            for number in range(_WORKER_COUNT)
        ]
        self.threads.append(
            threading.Thread(target=self._check_log_ins, name="http-log-in", daemon=True)
        )

    def close(self) -> None:
        """Accept no more requests; the threads end when the waiting ones have been answered."""
        self._closed = True
        self.log_ins.close()
        self.requests.close()

    def _answer_requests(self) -> None:
        while (queued := self.requests.get()) is not None:
            self._answer_request(*queued)

    def _answer_request(self, connection: HttpConnection, request: HttpRequest) -> None:
        answer = None
        try:
            if not connection.is_broken():
                answer = self.build_answer(request)
        except Exception:  # the connection must not be left behind
            log.exception("%s %s", request.method, request.path)
        self._deliver(connection, answer)

    def build_answer(self, request: HttpRequest) -> RenderedResponse:
        """The rendered answer of the site; an error of its own is one too."""
        started = time.perf_counter()
        try:
            response = self._web.answer(request)
            response = compress(response, request.headers.get("accept-encoding", ""))
        except Exception:  # one request must not end the worker
            log.exception("%s %s", request.method, request.path)
            response = _INTERNAL_ERROR
        log.debug(
            "%s %s %d %d bytes %.1f ms",
            request.method,
            request.path,
            response.status.value,
            len(response.body),
            1000 * (time.perf_counter() - started),
        )
        return render_answer(response, request, request.keep_alive)

    def _check_log_ins(self) -> None:
        """Check one password at a time, by address in turn; guesses take at most half of a CPU."""
        failed_clients: dict[str, None] = {}
        while (queued := self.log_ins.get()) is not None:
            connection, request = queued
            # A scraper that gave up waiting is still verified, so that its next request is answered
            # at once.
            if connection.client in failed_clients and connection.has_client_left():
                self._deliver(connection, None)
                continue
            started = time.monotonic()
            try:
                password_valid = self._web.verify(request)
            except Exception:  # access is denied if verification fails
                log.exception("a password cannot be verified")
                password_valid = False
            check_seconds = time.monotonic() - started
            if request.path in HEALTH_PATHS or not self.requests.put(connection.client, queued):
                self._answer_request(connection, request)  # needs no worker, or the server stops
            if not password_valid and not self._closed:
                failed_clients[connection.client] = None
                if len(failed_clients) > self._max_waiting:
                    del failed_clients[next(iter(failed_clients))]
                time.sleep(min(check_seconds, 1.0))
