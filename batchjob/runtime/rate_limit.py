"""A rate limiter: a token bucket for each client, in bounded memory."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import monotonic

_MAX_KEYS = 10_000


class RateLimiter:
    """Allows each key a number of requests per second, and a burst of requests after a pause.

    A bucket is stored as the time at which it will be full again (ATM Forum's generic cell rate
    algorithm), so that an idle client needs no memory. If there are more than `max_keys` clients at
    once, those that were idle longest are forgotten, and have a full bucket again.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        max_keys: int = _MAX_KEYS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`per_second` 0: there is no limit."""
        self._interval = 1 / per_second if per_second else 0.0
        self._burst_seconds = max(burst - 1, 0) * self._interval
        self._max_keys = max_keys
        self._clock = clock
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self, key: Hashable) -> float:
        """Take one request and return 0, or return the seconds after which one will be allowed."""
        if not self._interval:
            return 0.0
        with self._lock:
            now = self._clock()
            full_at = max(now, self._full_at.pop(key, now))
            excess = full_at - now - self._burst_seconds
            self._full_at[key] = full_at if excess > 0 else full_at + self._interval
            if len(self._full_at) > self._max_keys:
                self._full_at.popitem(last=False)
        return max(excess, 0.0)

    def __len__(self) -> int:
        return len(self._full_at)
