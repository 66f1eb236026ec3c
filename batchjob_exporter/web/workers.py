"""The threads that answer requests, and the queues of waiting requests.

Clients are served in turn. A thread of its own checks passwords, one at a time.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from http import HTTPStatus

from batchjob.runtime.round_robin_queue import RoundRobinQueue
from batchjob_exporter.web.auth import Web
from batchjob_exporter.web.connection import Answer, HttpConnection
from batchjob_exporter.web.message import HttpRequest, compressed, render, text

log = logging.getLogger(__name__)

_WORKERS = 4
_LOG_INS = 8  # requests per address that may wait for a password check
_FAILED = text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the exporter's log")

_Asked = tuple[HttpConnection, HttpRequest]


class RequestWorkers:
    """Answers requests in threads, which call `deliver`, with None if there is no answer."""

    def __init__(
        self, web: Web, places: int, deliver: Callable[[HttpConnection, Answer | None], None]
    ) -> None:
        """`places`: maximum number of waiting requests of one client."""
        self._web = web
        self._places = places
        self._deliver = deliver
        self._log_ins: RoundRobinQueue[_Asked] = RoundRobinQueue(_LOG_INS)
        self._requests: RoundRobinQueue[_Asked] = RoundRobinQueue(places)
        self._closed = False
        self.threads = [
            threading.Thread(
                target=self._answer_requests, name=f"http-worker-{number}", daemon=True
            )
            for number in range(_WORKERS)
        ]
        self.threads.append(
            threading.Thread(target=self._check_log_ins, name="http-log-in", daemon=True)
        )

    def close(self) -> None:
        """Accept no more requests; the threads end when the waiting ones have been answered."""
        self._closed = True
        self._log_ins.close()
        self._requests.close()

    def answer(self, connection: HttpConnection, request: HttpRequest) -> bool:
        """Queue a request; False if there is no room for it."""
        return self._requests.put(connection.client, (connection, request))

    def log_in(self, connection: HttpConnection, request: HttpRequest) -> bool:
        """Queue a request whose password must be checked first; False if there is no room."""
        return self._log_ins.put(connection.client, (connection, request))

    def waiting_log_ins(self) -> Counter[Hashable]:
        """The number of requests of each client whose password waits to be checked."""
        return self._log_ins.lengths()

    def withdraw_log_in(self, client: Hashable) -> HttpConnection | None:
        """Take back the last of a client's requests that wait for this; None if there is none."""
        withdrawn = self._log_ins.withdraw(client)
        return withdrawn[0] if withdrawn else None

    def _answer_requests(self) -> None:
        while (asked := self._requests.get()) is not None:
            self._answer(*asked)

    def _answer(self, connection: HttpConnection, request: HttpRequest) -> None:
        answer = None
        try:
            if not connection.broken():
                answer = self._respond(request)
        except Exception:  # the connection must not be left behind
            log.exception("%s %s", request.method, request.path)
        self._deliver(connection, answer)

    def _respond(self, request: HttpRequest) -> Answer:
        begin = time.perf_counter()
        try:
            response = self._web.answer(request)
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
        keep_alive, with_body = request.keep_alive, request.method != "HEAD"
        return Answer(render(response, keep_alive=keep_alive, with_body=with_body), keep_alive)

    def _check_log_ins(self) -> None:
        """Check one password at a time, by address in turn; guesses take at most half of a CPU."""
        guessers: dict[str, None] = {}
        while (asked := self._log_ins.get()) is not None:
            connection, request = asked
            # A scraper that gave up waiting is still verified, so that its next request is answered
            # at once.
            if connection.client in guessers and connection.left():
                self._deliver(connection, None)
                continue
            begin = time.monotonic()
            try:
                right = self._web.verify(request)
            except Exception:  # access is denied if verification fails
                log.exception("a password cannot be verified")
                right = False
            taken = time.monotonic() - begin
            if not self._requests.put(connection.client, asked):
                self._answer(connection, request)  # the server is about to stop
            if not right and not self._closed:
                guessers[connection.client] = None
                if len(guessers) > self._places:
                    del guessers[next(iter(guessers))]
                time.sleep(min(taken, 1.0))
