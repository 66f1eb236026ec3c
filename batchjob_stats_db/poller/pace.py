"""When a scheduler, or whoever else, is asked again."""

import math

_SLOW = 4  # a scheduler is left alone this many times as long as it took to answer


class Pace:
    """When to ask again: at the interval, later after failures, and gently when it is slow.

    In seconds of a clock that nobody sets. What is asked rarely is tried again sooner than that
    after a failure: from twice `retry` on.
    """

    def __init__(self, interval: float, longest: float, retry: float | None = None) -> None:
        self.interval = interval  # seconds
        self._retry = interval if retry is None else min(retry, interval)
        self._longest = max(longest, interval)
        self._failures = 0
        self.next = -math.inf

    def due(self, now: float) -> bool:
        """Whether it is time."""
        return now >= self.next

    def after(self, begun: float, now: float, well: bool) -> None:
        """Note how it went, and when it is time again."""
        self._failures = 0 if well else self._failures + 1
        pause = self.interval if well else self._retry * 2 ** min(self._failures, 20)
        self.next = begun + min(max(pause, _SLOW * (now - begun)), self._longest)
