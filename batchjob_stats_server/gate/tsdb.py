"""Questions to the time series database: few at once, none for long, no answer beyond a size."""

import json
import queue
import time
from collections.abc import Sequence
from typing import NamedTuple

import requests

from batchjob_stats_db.history.prometheus import Endpoint, session

# Statuses with which the Prometheus API tells of the query, not of itself (its documentation,
# "HTTP API", format overview).
_ABOUT_THE_QUERY = frozenset({400, 422, 503})
_PATIENCE_SECONDS = 2.0  # beyond the time the database was given for a query
_LONGEST_REASON = 300


class Unavailable(Exception):
    """There is no answer: the database is gone, busy, or not what it should be."""


class Answer(NamedTuple):
    """JSON of the Prometheus API: a result with status 200, or why there is none."""

    status: int
    body: bytes


class Tsdb:
    """Asks one server; used by many threads."""

    def __init__(self, endpoint: Endpoint, concurrent: int) -> None:
        self._endpoint = endpoint
        # Whoever holds a session may ask: so the queue is the limiter as well.
        self._idle: queue.LifoQueue[requests.Session] = queue.LifoQueue()
        for _ in range(concurrent):
            self._idle.put(session(endpoint))

    def ask(self, path: str, form: Sequence[tuple[str, str]], timeout: float) -> Answer:
        """One request, in `timeout` seconds all in all; raises Unavailable."""
        deadline = time.monotonic() + timeout + _PATIENCE_SECONDS
        try:
            idle = self._idle.get(timeout=timeout)
        except queue.Empty:
            raise Unavailable("too many questions to the time series database at once") from None
        try:
            return self._ask(idle, path, form, deadline)
        except requests.RequestException as error:
            # Not its text: that holds addresses, which are not the caller's business.
            raise Unavailable("the time series database does not answer") from error
        finally:
            self._idle.put(idle)

    def _ask(
        self, idle: requests.Session, path: str, form: Sequence[tuple[str, str]], deadline: float
    ) -> Answer:
        url = f"{self._endpoint.url.rstrip('/')}/api/v1/{path}"
        # Label values are the one question that Prometheus takes by GET alone.
        get = path.startswith("label/")
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
            return Answer(200, body)
        if response.status_code in _ABOUT_THE_QUERY:
            return Answer(response.status_code, _reason(body))
        raise Unavailable(f"the time series database answers {response.status_code}")

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        body = bytearray()
        for chunk in response.iter_content(1 << 16):
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


def _reason(body: bytes) -> bytes:
    """What the database says of a query, and nothing else it may have written."""
    try:
        answer = json.loads(body)
        kind, text = str(answer["errorType"]), str(answer["error"])
    except (ValueError, KeyError, TypeError):
        kind, text = "execution", "the time series database did not take the query"
    text = text[:_LONGEST_REASON]
    return json.dumps({"status": "error", "errorType": kind, "error": text}).encode()
