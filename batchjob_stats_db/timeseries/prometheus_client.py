"""Requests to a Prometheus-compatible HTTP API, and its answers."""

import base64
import math
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

from batchjob.runtime.http_client import FetchError, HttpSession, tls_context
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob_stats_db.timeseries.base import SeriesValue, TimeSeriesError

FORM = "application/x-www-form-urlencoded"
_SHORT = 2000  # characters of a query that fits into a URL for any server and proxy
PATIENCE_SECONDS = 2.0  # in addition to the server's own timeout for a query


@dataclass(frozen=True)
class Endpoint:
    """The server's address and credentials."""

    url: str
    username: str = ""
    password: str = ""
    token: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    headers: Mapping[str, str] | None = None  # e.g. Mimir's X-Scope-OrgID
    timeout_seconds: float = 60.0
    answer_bytes: int = 32 << 20  # needs ten times as much memory when parsed
    batch_jobs: int = 1000
    batch_characters: int = 12_000  # of job ids; VictoriaMetrics accepts queries of up to 16 kB
    batch_samples: int = 5_000_000  # a tenth of Prometheus' --query.max-samples
    scrape_interval: float = 30.0


def open_session(endpoint: Endpoint) -> HttpSession:
    """A persistent connection to the server; raises SettingsError if a certificate cannot be read.

    Proxies of the user who starts the program are ignored, and answers are not compressed, which
    costs a nearby server more than it saves.
    """
    check_certificates(endpoint)
    return HttpSession(endpoint.url, headers_for(endpoint), partial(trust, endpoint))


def request_for(
    endpoint: Endpoint, path: str, form: Iterable[tuple[str, str]]
) -> tuple[str, str, bytes]:
    """Method, target and body of a query."""
    target = f"{urlsplit(endpoint.url).path.rstrip('/')}/api/v1/{path}"
    text = urlencode(list(form))
    # Prometheus accepts these only as GET. For short queries, GET is also faster: the head and
    # the body of a POST are sent separately, and the server starts only when the body arrives.
    if path.startswith(("label/", "metadata")) or len(text) <= _SHORT:
        return "GET", f"{target}?{text}" if text else target, b""
    return "POST", target, text.encode()


def unfinished_reason(endpoint: Endpoint, error: FetchError) -> str:
    """Why an answer that began is not complete; "" if there is none at all."""
    if error.reason == "too_large":
        return f"the answer has more than {endpoint.answer_bytes} bytes"
    return "the answer took too long to arrive" if error.response_begun else ""


def headers_for(endpoint: Endpoint) -> dict[str, str]:
    headers = dict(endpoint.headers or {})
    if endpoint.username:
        both = f"{endpoint.username}:{endpoint.password}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(both).decode()}"
    if endpoint.token:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    return headers


def check_certificates(endpoint: Endpoint) -> None:
    """Read the certificates, so that a wrong file is found when the program starts."""
    if urlsplit(endpoint.url).scheme == "https":
        trust(endpoint)


def trust(endpoint: Endpoint) -> ssl.SSLContext:
    """The certificates of a connection; raises SettingsError."""
    try:
        context = tls_context(endpoint.ca_file)
    except OSError as error:
        raise SettingsError(f"tsdb.ca-file: {endpoint.ca_file}: {reason(error)}") from error
    if endpoint.cert_file:
        try:
            context.load_cert_chain(endpoint.cert_file, endpoint.key_file or None)
        except OSError as error:
            raise SettingsError(f"tsdb.cert-file: {endpoint.cert_file}: {reason(error)}") from error
    return context


NamedSeries = Iterator[tuple[str, dict[str, str], dict[str, Any]]]
"""Name of the metric, other labels, and the result with its `value` or `values`."""


class PartialAnswer(TimeSeriesError):
    """The server could not read all its data, so its answer is incomplete."""


def results_of(url: str, status: int, body: bytes) -> list[dict[str, Any]]:
    """The series of an answer; raises TimeSeriesError for an error or an incomplete answer."""
    try:
        answer = parse_json(body)
        if answer["status"] == "success":
            # Warnings about Prometheus' remote storage and Thanos' stores, and VictoriaMetrics'
            # flag.
            if answer.get("isPartial") or answer.get("warnings"):
                reason = "; ".join(map(str, answer.get("warnings") or ()))
                raise PartialAnswer(f"{url}: a partial answer{reason and ': '}{reason[:300]}")
            results = answer["data"]["result"]
            if isinstance(results, list):
                return results
        reason = str(answer.get("error") or "no result")
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = f"not an answer of a Prometheus API: {body[:80]!r}"
    raise TimeSeriesError(f"{url}: status {status}: {reason}")


def named_series(answer: list[dict[str, Any]]) -> NamedSeries:
    """Series with their metric and labels separated."""
    for result in answer:
        labels = dict(result["metric"])
        yield labels.pop("__name__", ""), labels, result


def instant_values(answer: list[dict[str, Any]]) -> Iterator[SeriesValue]:
    for name, labels, result in named_series(answer):
        yield SeriesValue(name, labels, float(result["value"][1]))


def finite_points(pairs: Iterable[tuple[float, str]]) -> Iterator[tuple[float, float]]:
    """Time and value of numeric samples; the marker of a stale series is NaN."""
    return ((at, value) for at, text in pairs if math.isfinite(value := float(text)))
