"""Limits how long requests wait for measurements, and how many wait at a time."""

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_LONGEST_SECONDS = 1.0
_QUICK_SECONDS = 0.25  # an answer that takes longer is slow, and the next ones may be too
_SLOW_SECONDS = 10.0  # how long the next answers are considered slow


class BoundedWait:
    """Keeps a slow time series database from occupying all threads that answer requests.

    A request that does not get what it waits for shows what is recorded.
    """

    def __init__(
        self,
        places: int = 1,
        seconds: float = _LONGEST_SECONDS,
        quick: float = _QUICK_SECONDS,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`places`: how many requests may wait at a time for a slow database.

        `seconds`: the maximum wait; `quick`: the duration from which an answer is slow. `aside`: a
        context manager entered while a thread waits.
        """
        self._places = threading.BoundedSemaphore(places)
        self._seconds = seconds
        self._quick = quick
        self._aside = aside
        self._slow_until = 0.0  # in monotonic seconds

    def wait(self, answers: Collection[Future[Any]]) -> None:
        """Wait until all answers have arrived, at most `seconds`, unless too many requests wait."""
        if all(answer.done() for answer in answers):
            return
        if time.monotonic() >= self._slow_until:
            self._observed(answers)
        elif self._places.acquire(blocking=False):
            try:
                self._observed(answers)
            finally:
                self._places.release()

    def _observed(self, answers: Collection[Future[Any]]) -> None:
        with self._aside():
            begun = time.monotonic()
            wait(answers, self._seconds)
            now = time.monotonic()
        if now - begun > self._quick:
            self._slow_until = now + _SLOW_SECONDS
