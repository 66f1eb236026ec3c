"""Queries one provider in a thread of its own, and keeps its last answer.

It is also kept on disk, so that the provider is not queried early after a restart.
"""

import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from batchjob.runtime.background import PostponedError, Refresher
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.log import LogOnce
from collectors.emissions.providers.provider import (
    REASONS,
    EmissionFactor,
    FactorError,
    FetchJson,
    ProviderAccess,
    ProviderEntry,
)
from collectors.emissions.providers.registry import longest_age

log = logging.getLogger(__name__)
_LONGEST_PAUSE = 3600.0
Clock = Callable[[], float]


class ProviderPoller:
    """A provider for one zone. `clock` gives epoch seconds."""

    def __init__(
        self,
        name: str,
        provider: ProviderEntry,
        access: ProviderAccess,
        fetch_json: FetchJson,
        cache_directory: str = "",
        clock: Clock = time.time,
        spread: float = 0.0,
    ) -> None:
        self.name = name
        self._provider = provider
        self._access = access
        self._fetch_json = fetch_json
        self._directory = cache_directory
        self._clock = clock
        self._errors: Counter[str] = Counter()
        self._once = LogOnce(log)
        self._last_factors, queried_at = load_cache(cache_directory, self._provider_and_zone)
        self.refresher: Refresher[None] = Refresher(
            f"emissions {self._provider_and_zone}",
            self._query,
            provider.interval,
            provider.interval,
            longest_pause=_LONGEST_PAUSE,
            first_pause=self._first_pause(queried_at, spread),
        )

    def start(self) -> None:
        """Start querying."""
        self.refresher.start()

    def stop(self) -> None:
        """Stop the thread."""
        self.refresher.stop()

    def refresh(self) -> None:
        """Query once, now, in the calling thread."""
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
        """Failures so far by reason."""
        return {reason: self._errors[reason] for reason in REASONS}

    @property
    def _provider_and_zone(self) -> str:
        return f"{self.name}:{self._access.zone}" if self._access.zone else self.name

    def _first_pause(self, queried_at: float, spread: float) -> float:
        """The rest of the interval since the last query, including those before a restart."""
        elapsed = self._clock() - queried_at
        return (
            self._provider.interval - elapsed if 0 <= elapsed < self._provider.interval else spread
        )

    def _query(self) -> None:
        try:
            factors = self._provider.read(self._fetch_json, self._access, self._clock())
            self._check_age(factors)
        except FactorError as error:
            self._errors[error.reason] += 1
            raise PostponedError(str(error), error.seconds) from error
        self._last_factors = factors  # atomic: readers see either the old or the new ones
        if not self._directory:
            return
        try:
            save_cache(self._directory, self._provider_and_zone, factors, self._clock())
        except OSError as error:
            self._once.warning("cache", "emissions: %s: %s", self._directory, error.strerror)

    def _check_age(self, factors: tuple[EmissionFactor, ...]) -> None:
        now = self._clock()
        if all(now - each.observed_at > longest_age(each.provider) for each in factors):
            hours = (now - max(each.observed_at for each in factors)) / 3600
            raise FactorError("late", f"the newest value is {hours:.1f} hours old")


def _cache_path(directory: str, name: str) -> Path:
    return Path(directory) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.json"


def save_cache(
    directory: str, name: str, factors: Sequence[EmissionFactor], queried_at: float
) -> None:
    """Replace the file of a provider in one step; raises OSError."""
    path = _cache_path(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    rows = [each._asdict() for each in factors]
    new.write_text(json.dumps({"asked_at": queried_at, "observations": rows}), encoding="utf-8")
    new.replace(path)


def load_cache(directory: str, name: str) -> tuple[tuple[EmissionFactor, ...], float]:
    """The cached factors, and when the provider was queried for them (epoch seconds).

    No factors and an infinite time if there is no directory, or no file that can be read.
    """
    try:
        document = parse_json(_cache_path(directory, name).read_bytes()) if directory else {}
        factors = tuple(_parse_factor(row) for row in document["observations"])
        return factors, float(document["asked_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return (), float("inf")


def _parse_factor(row: dict[str, object]) -> EmissionFactor:
    factor = EmissionFactor(**row)  # type: ignore[arg-type]  # checked below
    for value, kind in zip(factor, (str, str, str, float, float, bool), strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return factor
