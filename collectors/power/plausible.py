"""Detects glitches in the readings of a power gauge.

A failing sensor or a disturbed bus returns all bits set, or bytes of another number. Unlike the
glitch of a counter, such a value would remain in the energy totals.
"""

from collections import deque
from collections.abc import Collection

# More than any node draws; a BMC without a value reports 65535 (16 bits).
_MAX_WATTS = 50_000.0
_MAX_MEDIAN_RATIO = 10.0  # times the median of the last readings
_WINDOW_READINGS = 60  # readings in the median
_MIN_READINGS = 5  # readings needed for a meaningful median
# So many consistent readings in a row are accepted: a GPU node may have begun to work.
_CONSISTENT_READINGS = 3


class PlausiblePower:
    """One gauge. `series` changes with each glitch, since the time around it is unknown."""

    def __init__(self) -> None:
        self.series = 0
        self._accepted: deque[float] = deque(maxlen=_WINDOW_READINGS)
        self._rejected: list[float] = []

    def limit_watts(self) -> float:
        """Watts above which a single reading is rejected."""
        if len(self._accepted) < _MIN_READINGS:
            return _MAX_WATTS
        return min(_MAX_WATTS, _MAX_MEDIAN_RATIO * max(_median(self._accepted), 1.0))

    def accept(self, watts: float, rated_watts: float | None = None) -> bool:
        """Record a reading; False if it is rejected, as is any above twice `rated_watts`."""
        max_watts = _MAX_WATTS if rated_watts is None else min(_MAX_WATTS, 2 * rated_watts)
        if not 0 <= watts <= max_watts:
            self.series += 1
            return False
        if watts > self.limit_watts():
            self._rejected = [x for x in self._rejected if watts / 2 <= x <= watts * 2]
            self._rejected.append(watts)
            if len(self._rejected) < _CONSISTENT_READINGS:
                self.series += 1
                return False
            self._accepted.clear()
        self._rejected.clear()
        self._accepted.append(watts)
        return True


def _median(values: Collection[float]) -> float:
    """The median; importing `statistics` would take a megabyte of memory."""
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[-1 - middle]) / 2
