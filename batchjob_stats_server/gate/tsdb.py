"""Questions to the time series database: few at once, none for long, no answer beyond a size."""

import json
import logging
import queue
import time
from collections.abc import Sequence

import requests
import urllib3

from batchjob_stats_db.history.prometheus import Endpoint, session
from batchjob_stats_server.gate.bounds import Unavailable
from batchjob_stats_server.gate.turns import Turns

# Statuses with which the Prometheus API tells of the query, not of itself (its documentation,
# "HTTP API", format overview).
_ABOUT_THE_QUERY = frozenset({400, 422, 503})
_PATIENCE_SECONDS = 2.0  # beyond the time the database was given for a query
_LONGEST_REASON = 300

log = logging.getLogger(__name__)


class Rejected(Exception):
    """The database did not take the query; `kind` is its errorType."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


class Tsdb:
    """Asks one server."""

    def __init__(self, endpoint: Endpoint, concurrent: int, each: int = 0) -> None:
        """`each`: questions of one user at once; else half of all."""
        self._endpoint = endpoint
        self.turns = Turns(concurrent, each or max(1, concurrent // 2))
        self._idle: queue.LifoQueue[requests.Session] = queue.LifoQueue()
        for _ in range(concurrent):
            self._idle.put(session(endpoint))

    def ask(self, path: str, form: Sequence[tuple[str, str]], timeout: float) -> bytes:
        """A successful answer as it came; raises Rejected, Unavailable.

        `timeout`: seconds the database has; the answer may take little longer to arrive.
        """
        deadline = time.monotonic() + timeout + _PATIENCE_SECONDS
        idle = self._idle.get(timeout=timeout)  # as many as threads that ask
        try:
            return self._ask(idle, path, form, deadline)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            log.warning("the time series database: %s", error)
            # Not that text: it holds addresses, which are not the caller's business.
            raise Unavailable("the time series database does not answer") from error
        finally:
            self._idle.put(idle)

    def _ask(
        self, idle: requests.Session, path: str, form: Sequence[tuple[str, str]], deadline: float
    ) -> bytes:
        url = f"{self._endpoint.url.rstrip('/')}/api/v1/{path}"
        # Prometheus takes these by GET alone.
        get = path.startswith(("label/", "metadata"))
        with idle.request(
            "GET" if get else "POST",
            url,
            params=list(form) if get else None,
            data=None if get else list(form),
            timeout=max(0.1, deadline - time.monotonic()),
            stream=True,
            allow_redirects=False,
        ) as response:
            body = self._read(response, deadline)
        if response.status_code == 200:
            return body
        if response.status_code in _ABOUT_THE_QUERY:
            raise _rejected(response.status_code, body)
        raise Unavailable(f"the time series database answers {response.status_code}")

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        body = bytearray()
        # As it comes: one that drips must not have the time anew for each piece.
        while chunk := response.raw.read1(1 << 16, decode_content=True):
            body += chunk
            if len(body) > self._endpoint.answer_bytes:
                raise Unavailable(
                    f"the answer has more than {self._endpoint.answer_bytes} bytes; ask for less"
                )
            if time.monotonic() > deadline:
                raise Unavailable("the answer took too long; ask for less")
        return bytes(body)

    def close(self) -> None:
        """Close the connections nobody uses."""
        while not self._idle.empty():
            self._idle.get_nowait().close()


def _rejected(status: int, body: bytes) -> Rejected:
    """With what the database says of the query, and nothing else it may have written."""
    try:
        answer = json.loads(body)
        kind, text = str(answer["errorType"]), str(answer["error"])
    except (ValueError, KeyError, TypeError):
        kind, text = "execution", "the time series database did not take the query"
    return Rejected(status, kind, text[:_LONGEST_REASON])
