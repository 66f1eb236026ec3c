"""An HTTP client for the event loop: queries to the time series database, over open connections.

A query that waits in the loop takes no thread, and passing it to one costs more than the request.
The limits are those of `batchjob/runtime/http_client.py`: a deadline for connecting, TLS, head and
body together, and a maximum size. Redirects are not followed, and proxies of the environment are
ignored.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools
from anyio.to_thread import run_sync

from batchjob.runtime.http_client import FetchError, failure_of
from batchjob_stats_db.timeseries.prometheus_client import FORM

_MAX_HEAD_BYTES = 64 * 1024


Reply = tuple[int, bytes]
"""Status and body; error statuses are returned, too."""


class AsyncHttpSession:
    """Requests to one server; for the thread of one event loop."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        tls: Callable[[], ssl.SSLContext],
        connections: int,
    ) -> None:
        """`headers`: for every request. `connections`: how many stay open while nobody asks.

        `tls` is called for each new connection, since certificates are renewed.
        """
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._encrypted = parts.scheme == "https"
        self._port = parts.port or (443 if self._encrypted else 80)
        self._tls = tls
        self._max_idle = connections
        self._idle: list[_ServerConnection] = []
        fixed = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "batchjob", **headers}
        self._head = "".join(f"{name}: {_one_line(value)}\r\n" for name, value in fixed.items())

    async def request(
        self, method: str, target: str, form: bytes, *, seconds: float, limit: int
    ) -> Reply:
        """Send a request that does no harm if it arrives twice; raises FetchError.

        It is sent again if the server closed the connection, which it may do at any time.
        """
        head = f"{method} {target} HTTP/1.1\r\n{self._head}"
        if form:
            head += f"Content-Type: {FORM}\r\nContent-Length: {len(form)}\r\n"
        message = head.encode("latin-1") + b"\r\n" + form
        connection: _ServerConnection | None = None
        try:
            async with asyncio.timeout(seconds):
                while (connection := self._take_idle()) is not None:
                    try:
                        return await self._exchange(connection, message, limit)
                    except ConnectionResetError:
                        if connection.response_begun:
                            raise
                connection = await self._connect()
                return await self._exchange(connection, message, limit)
        except TimeoutError as error:
            begun = connection is not None and connection.response_begun
            raise FetchError("deadline", f"{self}: timed out", response_begun=begun) from error
        except (OSError, httptools.HttpParserError) as error:
            raise failure_of(error, str(self)) from error

    def close(self) -> None:
        """Close the connections that nobody uses, and the others when they are answered."""
        self._max_idle = 0
        while self._idle:
            self._idle.pop().close()

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    def _take_idle(self) -> "_ServerConnection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
        return None

    async def _connect(self) -> "_ServerConnection":
        tls = await run_sync(self._tls) if self._encrypted else None
        _, connection = await asyncio.get_running_loop().create_connection(
            _ServerConnection, self._host, self._port, ssl=tls
        )
        return connection

    async def _exchange(self, connection: "_ServerConnection", message: bytes, limit: int) -> Reply:
        try:
            status, body = await connection.exchange(message, limit)
        except BaseException:
            connection.close()
            raise
        if len(body) > limit:
            connection.close()
            raise FetchError("too_large", f"{self}: more than {limit} bytes")
        if connection.is_open() and len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()
        return status, body


def _one_line(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise ValueError("expected a header in one line")
    return value


class _ServerConnection(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._limit = 0
        self._start()

    def _start(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._framing_bytes = 0  # since the last piece of the body
        self._has_length = False
        self._in_body = False
        self.response_begun = False

    def exchange(self, message: bytes, limit: int) -> asyncio.Future[Reply]:
        """Send a request; the reply has one byte more than `limit` if it is larger."""
        assert self._transport is not None
        self._start()
        self._limit = limit
        self._reply = self._loop.create_future()
        self._transport.write(message)
        return self._reply

    def is_open(self) -> bool:
        """Whether another request can be sent, in this event loop."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._loop is asyncio.get_running_loop()
        )

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's has the methods, not the type

    def data_received(self, data: bytes) -> None:
        """Parse a part of the answer."""
        if self._reply is None or self._reply.done():  # nobody asked
            self.close()
            return
        self.response_begun = True
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
        if self._framing_bytes > _MAX_HEAD_BYTES + len(data):
            self._fail(ConnectionError("the head of the answer is too long"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed it: the end of an answer without a length."""
        if self._in_body and not self._has_length and exc is None:
            self.on_message_complete()
        self._fail(ConnectionResetError("the server closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """Called by the parser; what is beyond the limit is not kept."""
        self._framing_bytes = 0
        self._body += body
        if len(self._body) > self._limit:
            self.on_message_complete()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._reply is None or self._reply.done():
            return
        if status < 200:  # the answer itself follows
            self._in_body = False
            return
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        self._reply.set_result((status, bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
