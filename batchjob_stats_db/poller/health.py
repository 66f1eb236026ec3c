"""Serves the poller's own metrics and health, on loopback by default."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

Check = Callable[[], str]
"""A check returns the problem, "" if there is none."""

log = logging.getLogger(__name__)

_METHODS = ("GET", "HEAD")
_MAX_CONNECTIONS = 32
_MAX_SECONDS = 30.0  # for a request and its answer


# The time at which a counter began would be one more series of each.
disable_created_metrics()  # type: ignore[no-untyped-call]


def exposition(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """A daemon's metrics about itself, and their Content-Type, for an Accept header."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


class HealthServer(ThreadingHTTPServer):
    """A thread for each of a few connections, none of which lasts long: anybody may connect."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        check_health: Check,
        check_readiness: Check,
    ) -> None:
        """Bind; raises OSError if the address is in use."""
        self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._registry = registry
        self._checks = {"/-/healthy": check_health, "/-/ready": check_readiness}
        super().__init__(address, _Handler)
        self._thread = threading.Thread(target=self.serve_forever, name="health")
        self.port = int(self.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def respond(self, method: str, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, Content-Type and body."""
        if path != "/metrics" and path not in self._checks:
            return 404, "text/plain", b"not found\n"
        if method not in _METHODS:
            return 405, "text/plain", f"expected {' or '.join(_METHODS)}\n".encode()
        if path == "/metrics":
            return 200, *exposition(self._registry, accept)
        problem = self._checks[path]()
        return (503 if problem else 200), "text/plain", f"{problem or 'ok'}\n".encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(_MAX_SECONDS, _end, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._places.release()

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log only for who looks for it: the client went away, or was sent away."""
        log.debug("an answer to %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    timeout = 10  # a client that sends nothing must not block a thread

    def _respond(self) -> None:
        status, content_type, body = self.server.respond(
            self.command, self.path.partition("?")[0], self.headers.get("Accept", "")
        )
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", ", ".join(_METHODS))
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _respond  # noqa: N815  # names that http.server looks up

    def log_message(self, format: str, *_arguments: object) -> None:
        """Do not log scrapes."""


def _end(connection: socket.socket) -> None:
    """End the reading and writing of a connection in whatever thread."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
