"""The standard library's `http.server`: a thread for each connection."""

import socket
import ssl
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.message import RequestRefused, parse_request
from benchmarks.http_servers.shared import (
    HEAD_SECONDS,
    IDLE_SECONDS,
    SEND_SECONDS,
    Places,
    answer,
    context_of,
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def setup(self) -> None:
        """Agree on encryption, in this thread."""
        self.request.settimeout(HEAD_SECONDS)
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()

    def do_GET(self) -> None:
        """Answer."""
        headers = "".join(f"\r\n{name}: {value}" for name, value in self.headers.items())
        try:
            request = parse_request(f"{self.requestline}{headers}".encode("latin-1"))
        except RequestRefused as refused:
            self.send_error(refused.status)
            return
        self.request.settimeout(SEND_SECONDS)
        self.wfile.write(answer(self.server.web, self.server.log_ins, request))
        self.close_connection = not request.keep_alive
        self.request.settimeout(IDLE_SECONDS)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, web: WebAccess) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.web, self.log_ins, self._places = web, threading.Lock(), Places()

    def get_request(self) -> tuple[socket.socket, Any]:
        """A new client, who has not said anything yet."""
        client, address = super().get_request()
        if (context := context_of(self.web)) is not None:
            client = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        return client, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread, if there is a place."""
        if self._places.take(client_address[0]):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.leave(client_address[0])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left."""


class Threads:
    """As `batchjob_exporter.web.server.HttpServer`."""

    def __init__(self, listeners: Sequence[socket.socket], web: WebAccess, *limits: object) -> None:
        del limits
        self._servers = [_Server(listener, web) for listener in listeners]

    def start(self) -> None:
        """Begin to accept clients."""
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop(self, seconds: float = 5.0) -> None:
        """End."""
        del seconds
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def responds(self, seconds: float) -> bool:
        """Nothing to ask."""
        del seconds
        return True
