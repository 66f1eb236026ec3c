"""Progress of a long command: a line on standard error, now and then."""

import sys
import time
from collections.abc import Callable

_LINE_SECONDS = 10.0


class Progress:
    """Shows progress from `begin` to `end`."""

    def __init__(
        self, title: str, begin: float, end: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._begin = begin
        self._length = max(end - begin, 1.0)
        self._clock = clock
        self._started = self._last_shown = clock()

    def update(self, position: float, note: str) -> None:
        """Say that `position` has been reached, unless something was said shortly before."""
        now = self._clock()
        if now - self._last_shown < _LINE_SECONDS:
            return
        self._last_shown = now
        share = min(max((position - self._begin) / self._length, 0.0), 1.0)
        left = f", {(now - self._started) * (1 - share) / share:.0f} s left" if share else ""
        print(f"{self._title}: {share:.0%}, {note}{left}", file=sys.stderr)

    def finish(self, note: str = "done") -> None:
        print(f"{self._title}: {note}", file=sys.stderr)
