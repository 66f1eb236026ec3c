"""Queries one provider in a thread of its own, and keeps its last answer."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchjob.runtime.background import PostponedError, Refresher
from collectors.emissions.providers.provider import (
    REASONS,
    EmissionFactor,
    FactorError,
    FetchJson,
    ProviderAccess,
    ProviderEntry,
)
from collectors.emissions.providers.registry import longest_age

if TYPE_CHECKING:
    import ssl

    from batchjob.runtime.http_client import HttpReply

_LONGEST_PAUSE = 3600.0
_MAX_RETRY_SECONDS = 86400.0
_DEFAULT_RETRY_SECONDS = 3600.0  # after a refusal without Retry-After
_MAX_BYTES = 1 << 20
Clock = Callable[[], float]


class ProviderPoller:
    """A provider for one zone. `clock` gives epoch seconds."""

    def __init__(
        self,
        name: str,
        provider: ProviderEntry,
        access: ProviderAccess,
        fetch_json: FetchJson,
        clock: Clock = time.time,
        spread: float = 0.0,
    ) -> None:
        self.name = name
        self._provider = provider
        self._access = access
        self._fetch_json = fetch_json
        self._clock = clock
        self._errors: Counter[str] = Counter()
        self._last_factors: tuple[EmissionFactor, ...] = ()
        self.refresher: Refresher[None] = Refresher(
            f"emissions {name}:{access.zone}",
            self._query,
            provider.interval,
            provider.interval,
            longest_pause=_LONGEST_PAUSE,
            first_pause=spread,
        )

    def start(self) -> None:
        self.refresher.start()

    def stop(self) -> None:
        self.refresher.stop()

    def refresh(self) -> None:
        self.refresher.refresh()

    def current(self) -> tuple[EmissionFactor, ...]:
        """The factors valid now: an outdated one is not returned."""
        now = self._clock()
        return tuple(
            each
            for each in self._last_factors
            if now - each.observed_at <= longest_age(each.provider)
        )

    def errors(self) -> Mapping[str, int]:
        return {reason: self._errors[reason] for reason in REASONS}

    def _query(self) -> None:
        try:
            factors = self._provider.read(self._fetch_json, self._access, self._clock())
            self._check_age(factors)
        except FactorError as error:
            self._errors[error.reason] += 1
            raise PostponedError(str(error), error.seconds) from error
        self._last_factors = factors  # atomic: readers see either the old or the new ones

    def _check_age(self, factors: tuple[EmissionFactor, ...]) -> None:
        now = self._clock()
        if all(now - each.observed_at > longest_age(each.provider) for each in factors):
            hours = (now - max(each.observed_at for each in factors)) / 3600
            raise FactorError("late", f"the newest value is {hours:.1f} hours old")


def json_fetcher(timeout: float, tls: "ssl.SSLContext") -> FetchJson:
    """A function that queries over HTTP, with the environment's proxy, and follows no redirects."""

    from batchjob.runtime.http_client import FetchError, fetch  # not needed by tables

    def fetch_json(url: str, headers: Sequence[tuple[str, str]] = ()) -> Any:
        all_headers = {"Accept": "application/json", **dict(headers)}
        try:
            answer = fetch(
                url, headers=all_headers, seconds=timeout, limit=_MAX_BYTES, tls=tls, proxies=True
            )
            _check(answer, url.partition("?")[0])
            return answer.json()
        except FetchError as error:
            raise FactorError(error.reason, str(error)) from error

    return fetch_json


def _check(answer: "HttpReply", url: str) -> None:
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
    from email.utils import parsedate_to_datetime  # it loads much that tables do not need

    if text.isascii() and text.isdigit():
        return min(float(text), _MAX_RETRY_SECONDS)
    try:
        at = parsedate_to_datetime(text).timestamp()
    except ValueError:
        return 0.0
    return min(max(0.0, at - now), _MAX_RETRY_SECONDS)
