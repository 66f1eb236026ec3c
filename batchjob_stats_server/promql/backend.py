"""Queries to the time series database: few at once, with limits on their time and size."""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
from anyio.to_thread import run_sync

from batchjob.runtime.http_client import FetchError, failure_of
from batchjob.runtime.json_reader import parse_json
from batchjob_stats_db.timeseries.prometheus_client import (
    FORM,
    PATIENCE_SECONDS,
    Endpoint,
    check_certificates,
    headers_for,
    request_for,
    trust,
    unfinished_reason,
)
from batchjob_stats_server.promql.query_limits import Unavailable
from batchjob_stats_server.promql.scan import SMOOTHING
from batchjob_stats_server.turns import Turns

_MAX_HEAD_BYTES = 64 * 1024


Reply = tuple[int, bytes]
"""Status and body; error statuses are returned, too."""


class AsyncHttpSession:
    """An HTTP client for one server and the event loop, over connections that stay open.

    A query that waits in the loop takes no thread, and passing it to one costs more than the
    request. The limits are those of `batchjob/runtime/http_client.py`: a deadline for connecting,
    TLS, head and body together, and a maximum size. Redirects are not followed, and proxies of the
    environment are ignored.
    """

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


# Statuses with which the Prometheus API reports errors of the query, not of the server (its
# documentation, "HTTP API", "Format overview").
_QUERY_ERROR_STATUSES = frozenset({400, 422, 503})
_MAX_ERROR_CHARACTERS = 300

# Of other metrics, everybody may see no metadata: their names would reveal what else a site
# measures.
_OWN_PREFIX = "batchjob_"
_METADATA_KEYS = ("type", "help", "unit")

# Prometheus 3 renamed the function; Prometheus 2 and VictoriaMetrics have the old name.
_OLD_SMOOTHING = "holt_winters"
_STRING_OR_SMOOTHING = re.compile(rf'"(?:[^"\\]|\\.)*"|\b{SMOOTHING}\(', re.DOTALL)
_UNKNOWN_SMOOTHING = re.compile(rf"unknown func[^,]{{0,40}}({SMOOTHING}|{_OLD_SMOOTHING})".encode())

log = logging.getLogger(__name__)


class Rejected(Exception):
    """The database rejected the query; `kind` is its errorType."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


class PromqlBackend:
    """Queries one server."""

    def __init__(self, endpoint: Endpoint, concurrent: int) -> None:
        """`concurrent`: maximum number of simultaneous queries; one user has half of them."""
        self.turns = Turns(concurrent, max(1, concurrent // 2), "the time series database")
        self._endpoint = endpoint
        self._has_old_smoothing = True  # until it says that it does not know the function
        check_certificates(endpoint)
        self._session = AsyncHttpSession(
            endpoint.url, headers_for(endpoint), partial(trust, endpoint), concurrent
        )

    async def ask(
        self, user: Hashable, path: str, form: Sequence[tuple[str, str]], timeout: float
    ) -> bytes:
        """A successful answer as received, when it is this user's turn.

        Raises Rejected, TooMany, Unavailable. `timeout`: seconds for the database; the answer may
        take a little longer to arrive.
        """
        async with self.turns.take(user):
            status, body = await self._ask(path, self._known_functions(form), timeout)
            if status in _QUERY_ERROR_STATUSES and _UNKNOWN_SMOOTHING.search(body):
                self._has_old_smoothing = not self._has_old_smoothing
                status, body = await self._ask(path, self._known_functions(form), timeout)
        if status == 200:
            return body
        if status in _QUERY_ERROR_STATUSES:
            raise _rejected(status, body)
        raise Unavailable(f"the time series database answers {status}")

    def _known_functions(self, form: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """The form, whose query was written by the gate, with the name that this server knows."""
        if not self._has_old_smoothing:
            return form
        return [
            (name, _STRING_OR_SMOOTHING.sub(_old_smoothing, text) if name == "query" else text)
            for name, text in form
        ]

    async def _ask(
        self, path: str, form: Sequence[tuple[str, str]], timeout: float
    ) -> tuple[int, bytes]:
        method, target, body = request_for(self._endpoint, path, form)
        try:
            return await self._session.request(
                method, target, body,
                seconds=timeout + PATIENCE_SECONDS, limit=self._endpoint.answer_bytes,
            )  # fmt: skip
        except FetchError as error:
            if reason := unfinished_reason(self._endpoint, error):
                raise Unavailable(f"{reason}; ask for less") from error
            log.warning("the time series database: %s: %s", target, error)
            # Not the error's text: it contains addresses that callers must not see.
            raise Unavailable("the time series database does not answer") from error

    def close(self) -> None:
        self._session.close()


def _old_smoothing(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else f"{_OLD_SMOOTHING}("


def _rejected(status: int, body: bytes) -> Rejected:
    """The error with the database's text about the query, and nothing else it may have sent."""
    try:
        answer = parse_json(body)
        kind, text = str(answer["errorType"]), str(answer["error"])
    except (ValueError, KeyError, TypeError):
        kind, text = "execution", "the time series database rejected the query"
    if _UNKNOWN_SMOOTHING.search(body):
        text = f"the time series database has neither {_OLD_SMOOTHING} nor {SMOOTHING}"
    return Rejected(status, kind, text[:_MAX_ERROR_CHARACTERS])


def known_metrics(
    answer: bytes, everything: bool, limit_per_metric: int | None
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Metrics and their metadata from the Prometheus API's answer.

    Without `everything`, only those of this project. An unexpected answer contains nothing.
    """
    try:
        metrics: Any = parse_json(answer)["data"]
    except (ValueError, KeyError, TypeError):
        return
    if not isinstance(metrics, dict):
        return
    for name, entries in sorted(metrics.items()):
        if (everything or name.startswith(_OWN_PREFIX)) and isinstance(entries, list):
            known = (each for each in entries[:limit_per_metric] if isinstance(each, dict))
            yield name, [{key: str(each.get(key, "")) for key in _METADATA_KEYS} for each in known]
