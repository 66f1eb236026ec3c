"""Queries to the time series database: few at once, with limits on their time and size."""

import logging
import re
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any

from batchjob.runtime.http_client import FetchError
from batchjob.runtime.json_reader import parse_json
from batchjob_stats_db.timeseries.prometheus_client import (
    PATIENCE_SECONDS,
    Endpoint,
    check_certificates,
    headers_for,
    request_for,
    trust,
    unfinished_reason,
)
from batchjob_stats_server.promql.async_client import AsyncHttpSession
from batchjob_stats_server.promql.query_limits import Unavailable
from batchjob_stats_server.promql.scan import SMOOTHING
from batchjob_stats_server.turns import Turns

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
            chosen = [each for each in entries[:limit_per_metric] if isinstance(each, dict)]
            yield name, [_to_strings(each) for each in chosen]


def _to_strings(each: dict[str, Any]) -> dict[str, str]:
    return {key: str(each.get(key, "")) for key in _METADATA_KEYS}
