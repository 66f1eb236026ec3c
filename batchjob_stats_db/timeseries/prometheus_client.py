"""A client of a Prometheus-compatible HTTP API, with limits on its answers."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import urllib3
from requests.utils import DEFAULT_CA_BUNDLE_PATH

_SHORT = 2000  # characters of a query that fits into a URL for any server and proxy
_PATIENCE_SECONDS = 2.0  # in addition to the server's own timeout for a query


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


class NoAnswer(Exception):
    """The server cannot be reached, or exceeds its time."""


class AnswerTooLarge(Exception):
    """The answer exceeds its maximum size."""


class AnswerTooSlow(Exception):
    """The answer began, but took too long to arrive."""


class PrometheusClient:
    """Queries one server over persistent connections.

    Through urllib3, since `requests` costs more than a small query. Proxies and ~/.netrc of the
    user who starts the program are ignored, and answers are not compressed, which costs a nearby
    server more than it saves.
    """

    def __init__(self, endpoint: Endpoint, connections: int = 1) -> None:
        self._endpoint = endpoint
        self._pool = _pool(endpoint, connections)
        self._base = f"{urlsplit(endpoint.url).path.rstrip('/')}/api/v1"

    def ask(self, path: str, form: Iterable[tuple[str, str]], timeout: float) -> tuple[int, bytes]:
        """Status and body; raises NoAnswer, AnswerTooLarge, AnswerTooSlow.

        `timeout`: seconds for the server; the answer may take a little longer to arrive.
        """
        deadline = time.monotonic() + timeout + _PATIENCE_SECONDS
        target = f"{self._base}/{path}"
        text = urlencode(list(form))
        # Prometheus accepts these only as GET. For short queries, GET is also faster: urllib3 sends
        # the head and the body of a POST separately, and the server starts only when the body
        # arrives.
        get = path.startswith(("label/", "metadata")) or len(text) <= _SHORT
        try:
            with self._pool.urlopen(
                "GET" if get else "POST",
                f"{target}?{text}" if get and text else target,
                body=None if get else text,
                headers={**self._pool.headers, "Content-Type": "application/x-www-form-urlencoded"},
                timeout=max(0.1, deadline - time.monotonic()),
                retries=False,
                redirect=False,
                preload_content=False,
            ) as response:
                return response.status, self._read(response, deadline)
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswer(f"{self._endpoint.url.rstrip('/')}/api/v1/{path}: {error}") from error

    def _read(self, response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
        body = bytearray()
        # Read data as it arrives: the timeout must not start again for each piece of a slow answer.
        while chunk := response.read1(1 << 16, decode_content=True):
            body += chunk
            if len(body) > self._endpoint.answer_bytes:
                raise AnswerTooLarge(f"more than {self._endpoint.answer_bytes} bytes")
            if time.monotonic() > deadline:
                raise AnswerTooSlow("the answer took too long to arrive")
        return bytes(body)

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()


def _pool(endpoint: Endpoint, connections: int) -> urllib3.HTTPConnectionPool:
    headers = dict(endpoint.headers or {})
    if endpoint.username:
        headers |= urllib3.make_headers(basic_auth=f"{endpoint.username}:{endpoint.password}")
    if endpoint.token:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    tls = {
        "ca_certs": endpoint.ca_file or DEFAULT_CA_BUNDLE_PATH,
        "cert_file": endpoint.cert_file or None,
        "key_file": endpoint.key_file or endpoint.cert_file or None,
    }
    return urllib3.connection_from_url(
        endpoint.url,
        maxsize=connections,
        headers=headers,
        **(tls if urlsplit(endpoint.url).scheme == "https" else {}),
    )
