"""HTTP requests, with a deadline for the whole of each and a limit on the size of its answer.

Redirects are not followed: credentials in headers must not reach a host that was not configured.
"""

import base64
import contextlib
import http.client
import select
import ssl
import time
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.reason import reason
from batchjob.runtime.timed_socket import TimedSocket, connect

_MEBIBYTE = 1 << 20


class FetchError(Exception):
    """No usable answer; `reason` is one of REASONS. The text names host and port, no secrets.

    `response_begun`: whether an answer had begun to arrive at the deadline.
    """

    def __init__(self, reason: str, message: str, response_begun: bool = False) -> None:
        assert reason in REASONS
        super().__init__(message)
        self.reason = reason
        self.response_begun = response_begun


REASONS = ("deadline", "malformed", "tls", "too_large", "unreachable")


class HttpReply(NamedTuple):
    """Status, headers and body; error statuses are returned, too."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body as JSON; a byte that is not UTF-8 becomes U+FFFD. Raises FetchError."""
        try:
            return parse_json(self.body)
        except ValueError as error:
            start = " ".join(self.body[:60].decode("utf-8", "replace").split())
            raise FetchError("malformed", f"expected JSON, got {start!r}") from error


class _Endpoint(NamedTuple):
    host: str
    port: int
    encrypted: bool
    path: str
    user: str  # `name:password` of the URL
    unix_socket: str = ""

    def __str__(self) -> str:
        return self.unix_socket or f"{self.host}:{self.port}"


def tls_context(ca_file: str = "", insecure: bool = False) -> ssl.SSLContext:
    """How to verify a server's certificate: by the system's CAs, `ca_file`, or not at all."""
    context = ssl.create_default_context(cafile=ca_file or None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def fetch(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    seconds: float = 10.0,
    limit: int = _MEBIBYTE,
    tls: ssl.SSLContext | None = None,
    proxies: bool = False,
    unix_socket: str = "",
) -> HttpReply:
    """Send one request. `proxies`: use the environment's https_proxy, http_proxy and no_proxy.

    `unix_socket`: the path of the socket to connect to, whatever host the URL names.
    """
    endpoint = _parse_endpoint(url)._replace(unix_socket=unix_socket)
    deadline = time.monotonic() + seconds
    with _translate_errors(endpoint):
        proxy = _find_proxy(endpoint) if proxies else None
        with contextlib.closing(_Connection(endpoint, tls, proxy, deadline)) as connection:
            return connection.exchange(method, endpoint.path, headers or {}, body, limit)


class HttpStream:
    """A GET request whose answer is read as it arrives; close it in the end."""

    def __init__(
        self, url: str, headers: Mapping[str, str], seconds: float, tls: ssl.SSLContext | None
    ) -> None:
        """Wait for the head of the answer, for so many seconds at most; raises FetchError."""
        self._endpoint = _parse_endpoint(url)
        with _translate_errors(self._endpoint):
            self._connection = _Connection(self._endpoint, tls, None, time.monotonic() + seconds)
            self._socket = self._connection.sock
            try:
                all_headers = {"User-Agent": "batchjob", **headers}
                self._connection.request("GET", self._endpoint.path, headers=all_headers)
                self._response = self._connection.getresponse()
            except BaseException:
                self._connection.close()
                raise
        self.status, self.headers = self._response.status, self._response.headers

    def pieces(self, silence: float) -> Iterator[bytes]:
        """The body; `silence`: seconds from one piece to the next. Raises FetchError.

        Without a limit (math.inf), the kernel detects a host that has died.
        """
        self._socket.keep_alive()
        with _translate_errors(self._endpoint):
            while True:
                self._socket.deadline = time.monotonic() + silence
                if not (piece := self._response.read1(1 << 16)):
                    return
                yield piece

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class HttpSession:
    """Requests to one server, over connections that stay open; for several threads."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        tls: Callable[[], ssl.SSLContext] = tls_context,
        connections: int = 1,
    ) -> None:
        """`headers`: for every request. `connections`: how many stay open while nobody asks.

        `tls` is called for each new connection, since certificates are renewed.
        """
        self._endpoint = _parse_endpoint(url)
        self._headers = headers or {}
        self._tls = tls
        self._max_idle = connections
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close_all, self._idle)

    def request(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        limit: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HttpReply:
        """Send a request that does no harm if it arrives twice; raises FetchError.

        It is sent again if the server closed the connection, which it may do at any time.
        """
        deadline = time.monotonic() + seconds
        all_headers = {**self._headers, **(headers or {})}
        with _translate_errors(self._endpoint):
            if idle := self._take_idle():
                idle.sock.deadline = deadline
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    return self._send(idle, method, path, all_headers, body, limit)
            tls = self._tls() if self._endpoint.encrypted else None
            opened = _Connection(self._endpoint, tls, None, deadline)
            return self._send(opened, method, path, all_headers, body, limit)

    def close(self) -> None:
        """Close the connections that nobody uses, and the others when they are answered."""
        self._max_idle = 0
        _close_all(self._idle)

    def _take_idle(self) -> "_Connection | None":
        """An open connection, removed from the list so that no other thread uses it."""
        while True:
            try:
                idle = self._idle.pop()
            except IndexError:
                return None
            if not idle.is_closed_by_server():
                return idle
            idle.close()

    def _send(self, connection: "_Connection", *request: Any) -> HttpReply:
        reusable = False
        try:
            reply = connection.exchange(*request)
            reusable = connection.sock is not None and len(self._idle) < self._max_idle
        finally:
            if reusable:
                self._idle.append(connection)
            else:
                connection.close()
        return reply


def _close_all(connections: "list[_Connection]") -> None:
    while connections:
        connections.pop().close()


class _Connection(http.client.HTTPConnection):
    """A connection, which must answer until `sock.give_up`."""

    auto_open = 0

    def __init__(
        self,
        endpoint: _Endpoint,
        tls: ssl.SSLContext | None,
        proxy: _Endpoint | None,
        deadline: float,
    ) -> None:
        """Connect; raises OSError and HTTPException."""
        super().__init__(endpoint.host, endpoint.port)
        self.default_port = 443 if endpoint.encrypted else 80  # which the Host header omits
        self._endpoint = endpoint
        peer = proxy or endpoint
        self.sock: TimedSocket = connect(peer.host, peer.port, peer.unix_socket, deadline)
        try:
            if proxy:
                _open_tunnel(self.sock, endpoint, proxy)
            if endpoint.encrypted:
                self.sock.encrypt(tls or tls_context(), endpoint.host)
        except BaseException:
            self.close()
            raise

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, limit: int
    ) -> HttpReply:
        self.request(method, path, body, {"User-Agent": "batchjob", **headers})
        with self.getresponse() as response:
            try:
                received = response.read(limit + 1)
            except TimeoutError as error:
                raise FetchError(
                    "deadline", f"{self._endpoint}: timed out", response_begun=True
                ) from error
            if len(received) > limit:
                raise FetchError("too_large", f"{self._endpoint}: more than {limit} bytes")
            if response.length:  # read(size) does not report that the body was cut short
                raise http.client.IncompleteRead(received, response.length)
            return HttpReply(response.status, response.headers, received)

    def is_closed_by_server(self) -> bool:
        """Whether the server has closed it: there is something to read, which nobody asked for."""
        poller = select.poll()
        poller.register(self.sock.fileno(), select.POLLIN)
        return bool(poller.poll(0))


def _parse_endpoint(url: str) -> _Endpoint:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an http or https URL, got {url!r}")
    encrypted = parts.scheme == "https"
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    user = urllib.parse.unquote(parts.netloc.rpartition("@")[0])
    return _Endpoint(
        parts.hostname, parts.port or (443 if encrypted else 80), encrypted, path, user
    )


def _find_proxy(endpoint: _Endpoint) -> _Endpoint | None:
    if urllib.request.proxy_bypass(str(endpoint)):
        return None
    url = urllib.request.getproxies().get("https" if endpoint.encrypted else "http")
    return _parse_endpoint(url if "://" in url else f"http://{url}") if url else None


@contextlib.contextmanager
def _translate_errors(endpoint: _Endpoint) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise FetchError("deadline", f"{endpoint}: timed out") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise failure_of(error, endpoint) from error


def _open_tunnel(connection: TimedSocket, endpoint: _Endpoint, proxy: _Endpoint) -> None:
    """Ask a proxy for a tunnel (RFC 9110, 9.3.6), for plain HTTP too."""
    lines = [f"CONNECT {endpoint} HTTP/1.1", f"Host: {endpoint}"]
    if proxy.user:
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(proxy.user.encode()).decode()}")
    connection.sendall("\r\n".join((*lines, "", "")).encode())
    response = http.client.HTTPResponse(
        connection,  # type: ignore[arg-type]  # it needs only makefile()
        method="CONNECT",
    )
    response.begin()
    if response.status != http.HTTPStatus.OK:
        raise OSError(f"proxy {proxy} returned status {response.status}")


def failure_of(error: Exception, endpoint: object) -> FetchError:
    reason = "unreachable" if isinstance(error, OSError) else "malformed"
    if isinstance(error, ssl.SSLError):
        reason = "tls"
    return FetchError(reason, f"{endpoint}: {describe_error(error)}")


def describe_error(error: Exception) -> str:
    """The error of a connection in words, without numbers and names of libraries."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not trusted: {error.verify_message}"
    if getattr(error, "reason", None) in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return "the server does not speak TLS; is it http:// rather than https://?"
    if isinstance(error, http.client.RemoteDisconnected):
        return (
            "the server closed the connection without a response; is it https:// rather than "
            "http://?"
        )
    return reason(error)
