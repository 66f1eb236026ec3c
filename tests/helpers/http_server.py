"""An HTTP server of a test on loopback: a function answers, and the requests are recorded."""

import contextlib
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What a client sent; `form` are the parameters of the query and of a form in the body."""

    method: str
    path: str  # without the query
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def form(self) -> dict[str, list[str]]:
        """The parameters of the query, and those of a form in the body."""
        found = urllib.parse.parse_qs(self.query, keep_blank_values=True)
        return found | urllib.parse.parse_qs(self.body.decode(), keep_blank_values=True)


class Response(NamedTuple):
    """An answer; `length` says whether its length is sent, `pause` the seconds before each byte."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    length: bool = True
    pause: float = 0.0


def json_response(document: Any, status: int = 200) -> Response:
    """A document as JSON."""
    return Response(json.dumps(document).encode(), status)


class FakeServer(NamedTuple):
    """The address of a server, and what it was asked."""

    url: str
    requests: list[Request]

    @property
    def port(self) -> int:
        """Its TCP port."""
        return int(self.url.rpartition(":")[2])


@contextlib.contextmanager
def serving(
    answer: Callable[[Request], Response | None], *, host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
) -> Iterator[FakeServer]:  # fmt: skip
    """Serve until the block ends. The function runs in a thread of each connection.

    It may wait for an event of the test, which must be set before the block ends. None closes the
    connection without an answer.
    """
    requests: list[Request] = []
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            request = Request(self.command, path, query, dict(self.headers), body)
            requests.append(request)
            response = answer(request)
            self.close_connection = response is None or not response.length
            if response is None:
                return
            with contextlib.suppress(ConnectionError):  # the client may have gone
                self.send_response(response.status)
                for name, value in response.headers:
                    self.send_header(name, value)
                if response.length and response.status != HTTPStatus.NO_CONTENT:
                    self.send_header("Content-Length", str(len(response.body)))
                self.end_headers()
                for piece in _pieces(response):
                    closing.wait(response.pause)
                    self.wfile.write(piece)

        do_GET = do_POST = do_DELETE = do_PUT = respond  # noqa: N815 (names of http.server)

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        server.daemon_threads = True  # a client may keep its connection open
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients may hang up
        if tls is not None:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            scheme = "http" if tls is None else "https"
            yield FakeServer(f"{scheme}://{host}:{server.server_port}", requests)
        finally:
            closing.set()
            server.shutdown()
            thread.join()


def _pieces(response: Response) -> list[bytes]:
    return [bytes((byte,)) for byte in response.body] if response.pause else [response.body]
