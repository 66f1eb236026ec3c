"""The time in which a GPU was busy, summed over its driver's samples.

A sample is the share of the time since the one before in which any kernel or copy ran, so the sum
misses nothing as long as it is continued before the driver forgets: NVML keeps 14 s of samples.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

LONGEST_INTERVAL_SECONDS = 10.0
"""Between two readings of a GPU's samples, whatever the interval of its other values is."""

_CLOCK_TOLERANCE_SECONDS = 1.0
_KEPT_SECONDS = 60.0
_ANY_SESSION = -1


class UtilizationSample(NamedTuple):
    """A sample of the driver."""

    at: int  # epoch microseconds, at the end of the sample
    fraction: float | None  # of the time since the sample before; None: an impossible value


class BusySample(NamedTuple):
    """A stretch of time of one GPU, in epoch seconds, and for how long it was busy then."""

    began: float
    ended: float
    busy_seconds: float


class BusyCounter:
    """Busy and observed seconds of one GPU since it was first read."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self.observed_seconds = 0.0
        self.recent: tuple[BusySample, ...] = ()  # of the last minute
        self._session: int | None = None
        self.last_stamp: int | None = None

    def restore(
        self,
        busy_seconds: float,
        observed_seconds: float,
        last_stamp: int | None,
        recent: Iterable[BusySample],
    ) -> None:
        """Go on with the numbers of an exporter that read this GPU before, in the same boot."""
        self.busy_seconds, self.observed_seconds = busy_seconds, observed_seconds
        self.last_stamp, self.recent, self._session = last_stamp, tuple(recent), _ANY_SESSION

    def newest(self, session: int, now: float) -> int | None:
        """The stamp after which samples are to be added; None if they would not continue the sum.

        `session` changes with each loading of NVML; `now` are epoch seconds.
        """
        continues = self._session in (session, _ANY_SESSION)
        if not continues or self.last_stamp is None or self.last_stamp > _latest_stamp(now):
            return None
        return self.last_stamp

    def add(
        self,
        samples: Sequence[UtilizationSample],
        session: int,
        now: float,
        sample_seconds: float = 0.2,
    ) -> None:
        """Add samples in the driver's order, which come every `sample_seconds`.

        The first samples, and those before a step of the clock, by which they are stamped, are not
        counted: it is not known which time they cover. Where samples are missing, only the time of
        the one after the gap is observed.
        """
        newest = self.newest(session, now)
        continues = newest is not None
        added: list[BusySample] = []
        for sample in samples:
            if newest is None or not newest < sample.at <= _latest_stamp(now):
                added.clear()
            elif sample.fraction is not None:
                seconds = (sample.at - newest) / 1e6
                seconds = seconds if seconds <= 2 * sample_seconds else sample_seconds
                end = sample.at / 1e6
                added.append(BusySample(end - seconds, end, sample.fraction * seconds))
            newest = sample.at
        if not continues:
            added.clear()
        self.busy_seconds += sum(each.busy_seconds for each in added)
        self.observed_seconds += sum(each.ended - each.began for each in added)
        latest = now + _CLOCK_TOLERANCE_SECONDS
        kept = [each for each in self.recent if now - _KEPT_SECONDS < each.ended <= latest]
        self.recent = (*kept, *added)
        self._session, self.last_stamp = session, newest


def _latest_stamp(now: float) -> float:
    return (now + _CLOCK_TOLERANCE_SECONDS) * 1e6
