"""When a scheduler or another source is queried again."""

import math

_SLOW_FACTOR = 4  # minimum interval, as a multiple of the time the scheduler took to answer


class Pace:
    """When to query again: after the interval, later after failures, and less often if it is slow.

    In seconds of a monotonic clock. After a failure, a rarely queried source is retried sooner than
    its interval: from twice `retry` on.
    """

    def __init__(self, interval: float, longest: float, retry: float | None = None) -> None:
        self.interval = interval  # seconds
        self._retry = interval if retry is None else min(retry, interval)
        self._longest_pause = max(longest, interval)
        self._failures = 0
        self.next_time = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether it is time to query."""
        return now >= self.next_time

    def schedule_next(self, started: float, now: float, succeeded: bool) -> None:
        """Record the result, which determines the next time."""
        self._failures = 0 if succeeded else self._failures + 1
        pause = self.interval if succeeded else self._retry * 2 ** min(self._failures, 20)
        self.next_time = started + min(
            max(pause, _SLOW_FACTOR * (now - started)), self._longest_pause
        )
