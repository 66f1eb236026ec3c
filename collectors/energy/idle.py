"""The idle power of a node or GPU: configured, or measured while nothing runs."""

_WINDOW_SECONDS = 60.0
# Hardware ages and is replaced: a minimum measured once must not apply forever.
_RISE_PER_DAY = 0.01
_DAY_SECONDS = 86400.0


LearnedIdlePower = tuple[float, float]
"""The watts of the lowest mean of an idle minute, and its time in epoch seconds."""


class IdlePower:
    """The idle power; 0 until an idle minute was measured: all energy is split by CPU time.

    Busy minutes are not used: the lowest power of a node that is never idle is not its idle power.
    """

    def __init__(
        self, configured: float | None = None, learned: LearnedIdlePower | None = None
    ) -> None:
        self.configured = configured
        self.learned = learned
        self._joules = 0.0
        self._seconds = 0.0

    def watts(self, epoch: float) -> float | None:
        """The current idle power; None while it is not known."""
        if self.configured is not None:
            return self.configured
        if self.learned is None:
            return None
        watts, learned_at = self.learned
        days = max(0.0, epoch - learned_at) / _DAY_SECONDS
        return watts * (1 + _RISE_PER_DAY * days)

    def joules(self, seconds: float, epoch: float) -> float:
        return (self.watts(epoch) or 0.0) * seconds

    def observe(self, joules: float, seconds: float, epoch: float, is_idle: bool) -> None:
        """Record an interval; `is_idle`: almost nothing ran."""
        if not is_idle:
            self._joules = self._seconds = 0.0
            return
        self._joules += joules
        self._seconds += seconds
        if self._seconds < _WINDOW_SECONDS:
            return
        mean = self._joules / self._seconds
        self._joules = self._seconds = 0.0
        current = None if self.learned is None else IdlePower(learned=self.learned).watts(epoch)
        if current is None or mean <= current:
            self.learned = mean, epoch
