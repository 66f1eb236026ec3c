"""Queries to providers: one GET with a deadline, a size limit and respect for rate limits."""

import email.utils
import ssl
import time
from collections.abc import Sequence
from typing import Any

from batchjob.runtime.http_client import FetchError, HttpReply, fetch
from collectors.emissions.providers.provider import FactorError, FetchJson

_MAX_RETRY_SECONDS = 86400.0
_DEFAULT_RETRY_SECONDS = 3600.0  # after a refusal without Retry-After
_MAX_BYTES = 1 << 20


def json_fetcher(timeout: float, tls: ssl.SSLContext) -> FetchJson:
    """A function that queries over HTTP, with the environment's proxy, and follows no redirects."""

    def fetch_json(url: str, headers: Sequence[tuple[str, str]] = ()) -> Any:
        all_headers = {"Accept": "application/json", **dict(headers)}
        try:
            answer = fetch(
                url,
                headers=all_headers,
                seconds=timeout,
                limit=_MAX_BYTES,
                tls=tls,
                proxies=True,
            )
            _check(answer, url.partition("?")[0])
            return answer.json()
        except FetchError as error:
            raise FactorError(error.reason, str(error)) from error

    return fetch_json


def _check(answer: HttpReply, url: str) -> None:
    if answer.status == 200:
        return
    message = f"{url}: status {answer.status}"
    if answer.status in (401, 403):
        raise FactorError("authentication", message, _DEFAULT_RETRY_SECONDS)
    retry_seconds = parse_retry_after(answer.headers.get("Retry-After", ""), time.time())
    if answer.status == 429:
        raise FactorError("rate_limited", message, retry_seconds or _DEFAULT_RETRY_SECONDS)
    raise FactorError("status", message, retry_seconds)


def parse_retry_after(text: str, now: float) -> float:
    """Seconds to wait according to Retry-After (RFC 9110, 10.2.3): a number, or a date."""
    if text.isascii() and text.isdigit():
        return min(float(text), _MAX_RETRY_SECONDS)
    try:
        at = email.utils.parsedate_to_datetime(text).timestamp()
    except ValueError:
        return 0.0
    return min(max(0.0, at - now), _MAX_RETRY_SECONDS)
