"""Periodic tasks and slow sources, each in a thread of its own."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from batchjob.runtime.log import LogOnce

log = logging.getLogger(__name__)
T = TypeVar("T")

_PAUSE_AFTER_ERROR_SECONDS = 1.0


class PeriodicTask:
    """Calls `step`, which returns the seconds to wait before the next call; None: until `wake`.

    An exception is logged once, and the next call follows after a second, so one failing device or
    job does not end the thread.
    """

    def __init__(
        self, name: str, step: Callable[[], float | None], first_pause: float = 0.0
    ) -> None:
        self._name = name
        self._step = step
        self._first_pause = first_pause
        self._woken = threading.Event()
        self._once = LogOnce(log)
        self._thread: threading.Thread | None = None
        self.stopping, self.patience_seconds = False, 2.0

    def start(self) -> None:
        """Start; the first step runs after the first pause."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Step soon, whatever the pause."""
        self._woken.set()

    def stop(self) -> None:
        """Stop the thread; if it hangs in its step, it is abandoned (it is a daemon thread)."""
        self.stopping = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(self.patience_seconds)

    def _run(self) -> None:
        self._woken.wait(self._first_pause)
        while not self.stopping:
            self._woken.clear()
            if not self.stopping:  # it may have been set after the check, and before it was cleared
                self._woken.wait(self._try_step())

    def _try_step(self) -> float | None:
        try:
            return self._step()
        except Exception as error:  # one failed step must not end the thread
            self._once.warning("step", "%s: %s: %s", self._name, type(error).__name__, error)
            return _PAUSE_AFTER_ERROR_SECONDS


class Observed(NamedTuple, Generic[T]):
    """A value and the time at which it was read, by the refresher's clock."""

    value: T
    at: float


def validity_seconds(interval: float, timeout: float = 0.0) -> float:
    """Seconds for which a value is valid that is read every `interval` seconds.

    It allows for two failed readings and a third one that takes as long as it may.
    """
    return 3 * interval + timeout


class PostponedError(Exception):
    """A source failed and must not be asked again for some seconds."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class AbsentError(PostponedError):
    """This machine does not have the source. That is not an error, so it is logged as info."""


class Refresher(PeriodicTask, Generic[T]):
    """Calls `read` every `interval` seconds and publishes what it returns.

    The first value is published as soon as the source answers. A read that raises is logged once
    and counted in `failures`; the last good value is valid until it is older than `expires_after`
    seconds. A read that hangs blocks this thread alone. After each consecutive failure the pause
    doubles, up to `longest_pause`; PostponedError may ask for more.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        interval: float,
        expires_after: float,
        clock: Callable[[], float] = time.monotonic,
        longest_pause: float = 0.0,
        first_pause: float = 0.0,
    ) -> None:
        super().__init__(name, self._refresh_and_pause, first_pause)
        self.failures = 0
        self._read = read
        self._interval = interval
        self._expires_after = expires_after
        self._clock = clock
        self._longest_pause = max(longest_pause, interval)
        self.pause = first_pause
        self._consecutive_failures = 0
        self._published: Observed[T] | None = None

    def latest(self) -> Observed[T] | None:
        """The last value; None if there is none or it has expired."""
        observed = self._published  # read once, because the thread may publish at any time
        is_valid = observed is not None and self._clock() - observed.at <= self._expires_after
        return observed if is_valid else None

    def refresh(self) -> None:
        try:
            value = self._read()
        except Exception as error:  # no exception of a source may end its thread
            if self.stopping:
                return  # the connection may have been closed during the read
            self.failures += 1
            self._consecutive_failures += 1
            self.pause = self._pause_after(error)
            log_failure = self._once.info if isinstance(error, AbsentError) else self._once.failure
            is_clear = isinstance(error, PostponedError)  # from its text alone
            text = str(error) if is_clear else f"{type(error).__name__}: {error}"
            log_failure("failed", "%s: %s", self._name, text)
            return
        self._once.forget("failed")
        self._consecutive_failures = 0
        self.pause = self._interval
        self._published = Observed(value, self._clock())

    def _pause_after(self, error: Exception) -> float:
        doublings = min(self._consecutive_failures - 1, 30)
        pause = min(self._interval * 2.0**doublings, self._longest_pause)
        return max(pause, error.seconds) if isinstance(error, PostponedError) else pause

    def _refresh_and_pause(self) -> float:
        self.refresh()
        return self.pause
