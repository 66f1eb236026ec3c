"""Queries one provider in a thread of its own, and keeps its last answer."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from batchjob.runtime.background import PostponedError, Refresher
from batchjob.runtime.log import LogOnce
from collectors.emissions import cache
from collectors.emissions.providers.provider import (
    REASONS,
    FactorError,
    FetchJson,
    Observation,
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
        cached = cache.load(cache_directory, self._provider_and_zone) if cache_directory else None
        self._last_observations = cached.observations if cached else ()
        self.refresher: Refresher[None] = Refresher(
            f"emissions {self._provider_and_zone}",
            self._query,
            provider.interval,
            provider.interval,
            longest_pause=_LONGEST_PAUSE,
            first_pause=self._first_pause(cached, spread),
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

    def current(self) -> tuple[Observation, ...]:
        """The observations valid now: an outdated factor is not returned."""
        now = self._clock()
        return tuple(
            each
            for each in self._last_observations
            if now - each.observed_at <= longest_age(each.provider)
        )

    def errors(self) -> Mapping[str, int]:
        """Failures so far by reason."""
        return {reason: self._errors[reason] for reason in REASONS}

    @property
    def _provider_and_zone(self) -> str:
        return f"{self.name}:{self._access.zone}" if self._access.zone else self.name

    def _first_pause(self, cached: cache.CachedObservation | None, spread: float) -> float:
        """The rest of the interval since the last query, including those before a restart."""
        elapsed = self._clock() - cached.queried_at if cached else -1.0
        return (
            self._provider.interval - elapsed if 0 <= elapsed < self._provider.interval else spread
        )

    def _query(self) -> None:
        try:
            observations = self._provider.read(self._fetch_json, self._access, self._clock())
            self._check_age(observations)
        except FactorError as error:
            self._errors[error.reason] += 1
            raise PostponedError(str(error), error.seconds) from error
        self._last_observations = (
            observations  # atomic: readers see either the old or the new observations
        )
        self._save_to_cache(observations)

    def _check_age(self, observations: tuple[Observation, ...]) -> None:
        now = self._clock()
        if all(now - each.observed_at > longest_age(each.provider) for each in observations):
            hours = (now - max(each.observed_at for each in observations)) / 3600
            raise FactorError("late", f"the newest value is {hours:.1f} hours old")

    def _save_to_cache(self, observations: tuple[Observation, ...]) -> None:
        if not self._directory:
            return
        try:
            cache.save(
                self._directory,
                self._provider_and_zone,
                cache.CachedObservation(self._clock(), observations),
            )
        except OSError as error:
            self._once.warning("cache", "emissions: %s: %s", self._directory, error.strerror)
