"""One HTTP request, with a deadline for the whole of it and a limit on its size.

Time-outs of the standard library and of `requests` restart with every byte, so a server that sends
one byte per second would hold them for ever. Redirects are not followed: credentials travel in
headers and must not reach a host that was not configured.
"""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from batchjob.runtime.reason import reason

_MEBIBYTE = 1 << 20


class FetchError(Exception):
    """No usable answer; `reason` is one of REASONS. The text names host and port, no secrets."""

    def __init__(self, reason: str, message: str) -> None:
        assert reason in REASONS
        super().__init__(message)
        self.reason = reason


REASONS = ("deadline", "malformed", "tls", "too_large", "unreachable")


class HttpReply(NamedTuple):
    """Status, headers and body; error statuses are returned, too."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body as JSON; a byte that is not UTF-8 becomes U+FFFD. Raises FetchError."""
        try:
            return json.loads(self.body.decode(errors="replace"))
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
            start = " ".join(self.body[:60].decode("utf-8", "replace").split())
            raise FetchError("malformed", f"expected JSON, got {start!r}") from error


class _Place(NamedTuple):
    host: str
    port: int
    encrypted: bool
    path: str
    user: str  # `name:password` of the URL
    unix_socket: str = ""

    def __str__(self) -> str:
        return self.unix_socket or f"{self.host}:{self.port}"


def trust(ca_file: str = "", insecure: bool = False) -> ssl.SSLContext:
    """How to verify a server's certificate: by the system's authorities, `ca_file`, or not at
    all.
    """
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
    place = _place(url)._replace(unix_socket=unix_socket)
    give_up = time.monotonic() + seconds
    kind = http.client.HTTPSConnection if place.encrypted else http.client.HTTPConnection
    with _connected(place, _proxy(place) if proxies else None, give_up, tls) as connected:
        connection = kind(place.host, place.port)
        connection.sock = connected
        with contextlib.closing(connection):
            connection.request(
                method, place.path, body, {"User-Agent": "batchjob", **(headers or {})}
            )
            response = connection.getresponse()
            received = response.read(limit + 1)
            # read(size) does not report that the body was cut short.
            if len(received) <= limit and response.length:
                raise http.client.IncompleteRead(received, response.length)
    if len(received) > limit:
        raise FetchError("too_large", f"{place}: more than {limit} bytes")
    return HttpReply(response.status, response.headers, received)


def _place(url: str) -> _Place:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an http or https URL, got {url!r}")
    encrypted = parts.scheme == "https"
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    user = urllib.parse.unquote(parts.netloc.rpartition("@")[0])
    return _Place(parts.hostname, parts.port or (443 if encrypted else 80), encrypted, path, user)


def _proxy(place: _Place) -> _Place | None:
    if urllib.request.proxy_bypass(str(place)):
        return None
    url = urllib.request.getproxies().get("https" if place.encrypted else "http")
    return _place(url if "://" in url else f"http://{url}") if url else None


@contextlib.contextmanager
def _connected(
    place: _Place, proxy: _Place | None, give_up: float, tls: ssl.SSLContext | None
) -> Iterator[socket.socket]:
    """A socket that is shut down at `give_up`; errors until then are raised as FetchError."""
    late = threading.Event()
    try:
        with contextlib.ExitStack() as stack:
            via = proxy or place
            raw = stack.enter_context(_connect(via, give_up))
            stack.enter_context(_cut_off(raw, give_up, late))
            if proxy:
                _tunnel(raw, place, proxy)
            if place.encrypted:
                context = tls or trust()
                raw = stack.enter_context(context.wrap_socket(raw, server_hostname=place.host))
            yield raw
    except (OSError, http.client.HTTPException, ValueError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise FetchError("deadline", f"{place}: timed out") from error
        raise FetchError(_reason(error), f"{place}: {in_words(error)}") from error
    if late.is_set():  # a truncated body without Content-Length looks complete
        raise FetchError("deadline", f"{place}: timed out")


def _connect(place: _Place, give_up: float) -> socket.socket:
    if place.unix_socket:
        addresses: list[tuple[Any, ...]] = [
            (socket.AF_UNIX, socket.SOCK_STREAM, 0, "", place.unix_socket)
        ]
    else:
        addresses = [*socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)]
    failure: OSError = OSError("no address")
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(0.001, give_up - time.monotonic()))
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


@contextlib.contextmanager
def _cut_off(connection: socket.socket, give_up: float, late: threading.Event) -> Iterator[None]:
    """Shut the connection down at `give_up`, through a descriptor that TLS does not take over."""
    twin = connection.dup()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):  # already closed by the peer
            twin.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, give_up - time.monotonic()), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        twin.close()


def _tunnel(connection: socket.socket, place: _Place, proxy: _Place) -> None:
    """Ask a proxy for a tunnel (RFC 9110, 9.3.6), for plain HTTP too."""
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    if proxy.user:
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(proxy.user.encode()).decode()}")
    connection.sendall("\r\n".join((*lines, "", "")).encode())
    response = http.client.HTTPResponse(connection, method="CONNECT")
    response.begin()
    if response.status != http.HTTPStatus.OK:
        raise OSError(f"proxy {proxy} returned status {response.status}")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "tls"
    return "unreachable" if isinstance(error, OSError) else "malformed"


def in_words(error: Exception) -> str:
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
