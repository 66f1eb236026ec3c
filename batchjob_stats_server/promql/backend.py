"""Queries to the time series database: few at once, with limits on their time and size."""

import logging
from collections.abc import Sequence

from batchjob.runtime.json_reader import parse_json
from batchjob_stats_db.timeseries.prometheus_client import (
    AnswerTooLarge,
    AnswerTooSlow,
    Endpoint,
    NoAnswer,
    PrometheusClient,
)
from batchjob_stats_server.promql.fair_queue import FairQueue
from batchjob_stats_server.promql.query_limits import Unavailable

# Statuses with which the Prometheus API reports errors of the query, not of the server (its
# documentation, "HTTP API", "Format overview").
_QUERY_ERROR_STATUSES = frozenset({400, 422, 503})
_MAX_ERROR_CHARACTERS = 300

log = logging.getLogger(__name__)


class Rejected(Exception):
    """The database rejected the query; `kind` is its errorType."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


class PromqlBackend:
    """Queries one server."""

    def __init__(self, endpoint: Endpoint, concurrent: int, max_per_user: int = 0) -> None:
        """`max_per_user`: maximum number of simultaneous queries of one user; 0: half of all."""
        self.queue = FairQueue(concurrent, max_per_user or max(1, concurrent // 2))
        self._client = PrometheusClient(endpoint, concurrent)

    def ask(self, path: str, form: Sequence[tuple[str, str]], timeout: float) -> bytes:
        """A successful answer as received; raises Rejected, Unavailable.

        `timeout`: seconds for the database; the answer may take a little longer to arrive.
        """
        try:
            status, body = self._client.ask(path, form, timeout)
        except NoAnswer as error:
            log.warning("the time series database: %s", error)
            # Not the error's text: it contains addresses that callers must not see.
            raise Unavailable("the time series database does not answer") from error
        except AnswerTooLarge as error:
            raise Unavailable(f"the answer has {error}; ask for less") from error
        except AnswerTooSlow as error:
            raise Unavailable(f"{error}; ask for less") from error
        if status == 200:
            return body
        if status in _QUERY_ERROR_STATUSES:
            raise _rejected(status, body)
        raise Unavailable(f"the time series database answers {status}")

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()


def _rejected(status: int, body: bytes) -> Rejected:
    """The error with the database's text about the query, and nothing else it may have sent."""
    try:
        answer = parse_json(body)
        kind, text = str(answer["errorType"]), str(answer["error"])
    except (ValueError, KeyError, TypeError):
        kind, text = "execution", "the time series database rejected the query"
    return Rejected(status, kind, text[:_MAX_ERROR_CHARACTERS])
