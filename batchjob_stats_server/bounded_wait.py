"""Limits how long requests wait for measurements, and how many wait at a time."""

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_MAX_SECONDS = 1.0
_SLOW_AFTER_SECONDS = 0.25  # an answer that takes longer is slow, and the next ones may be too
_SLOW_FOR_SECONDS = 10.0  # how long the next answers are considered slow


class BoundedWait:
    """Keeps a slow time series database from occupying all threads that answer requests.

    A request whose wait ends without an answer shows the recorded values.
    """

    def __init__(
        self,
        max_waiting: int = 1,
        seconds: float = _MAX_SECONDS,
        slow_after: float = _SLOW_AFTER_SECONDS,
        while_waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`max_waiting`: how many requests may wait at a time for a slow database.

        `seconds`: the maximum wait; `slow_after`: the duration from which an answer is slow;
        `while_waiting`: a context manager entered while a thread waits.
        """
        self._places = threading.BoundedSemaphore(max_waiting)
        self._seconds = seconds
        self._slow_after = slow_after
        self._while_waiting = while_waiting
        self._slow_until = 0.0  # in monotonic seconds

    def wait(self, answers: Collection[Future[Any]]) -> None:
        """Wait until all answers have arrived, at most `seconds`, unless too many requests wait."""
        if all(answer.done() for answer in answers):
            return
        if time.monotonic() >= self._slow_until:
            self._wait_and_time(answers)
        elif self._places.acquire(blocking=False):
            try:
                self._wait_and_time(answers)
            finally:
                self._places.release()

    def _wait_and_time(self, answers: Collection[Future[Any]]) -> None:
        with self._while_waiting():
            start = time.monotonic()
            wait(answers, self._seconds)
            now = time.monotonic()
        if now - start > self._slow_after:
            self._slow_until = now + _SLOW_FOR_SECONDS
