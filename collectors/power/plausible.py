"""Detects glitches in the readings of a power gauge.

A failing sensor or a disturbed bus returns all bits set, or bytes of another number. Unlike a
counter's glitch, that value would stay in the accounts.
"""

from collections import deque
from collections.abc import Collection

# More than any node draws; a BMC without a value reports 65535 (16 bits).
_MOST_WATTS = 50_000.0
_MULTIPLE = 10.0  # times the median of the last readings
_REMEMBERED = 60
_LEARNT = 5  # readings needed for a meaningful median
_STEP = 3  # consistent readings in a row are accepted, for example when a GPU node begins to work


class PlausiblePower:
    """One gauge. `series` changes with each glitch, since the time around it is unknown."""

    def __init__(self) -> None:
        self.series = 0
        self._accepted: deque[float] = deque(maxlen=_REMEMBERED)
        self._refused: list[float] = []

    def bound(self) -> float:
        """Watts above which a single reading is not believed."""
        if len(self._accepted) < _LEARNT:
            return _MOST_WATTS
        return min(_MOST_WATTS, _MULTIPLE * max(_median(self._accepted), 1.0))

    def accepts(self, watts: float, rated: float | None = None) -> bool:
        """Whether a new reading is believed; never one of more than twice the `rated` watts."""
        most = _MOST_WATTS if rated is None else min(_MOST_WATTS, 2 * rated)
        if not 0 <= watts <= most:
            self.series += 1
            return False
        if watts > self.bound():
            self._refused = [x for x in self._refused if watts / 2 <= x <= watts * 2]
            self._refused.append(watts)
            if len(self._refused) < _STEP:
                self.series += 1
                return False
            self._accepted.clear()
        self._refused.clear()
        self._accepted.append(watts)
        return True


def _median(values: Collection[float]) -> float:
    """The median; importing `statistics` would take a megabyte of memory."""
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[-1 - middle]) / 2
