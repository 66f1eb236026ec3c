"""How long requests wait for measurements, and how many of them do so at a time."""

import threading
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import Any

_LONGEST_SECONDS = 1.0


class BoundedWait:
    """A slow time series database must not take all threads that answer requests.

    A request that does not get what it waits for shows what is known without.
    """

    def __init__(self, places: int = 1, seconds: float = _LONGEST_SECONDS) -> None:
        """`places`: how many requests wait at a time, each for at most so many seconds."""
        self._places = threading.BoundedSemaphore(places)
        self._seconds = seconds

    def wait(self, answers: Collection[Future[Any]]) -> None:
        """Until all answers have come, if they come in time and not too many requests wait."""
        if all(answer.done() for answer in answers):
            return
        if self._places.acquire(blocking=False):
            try:
                wait(answers, self._seconds)
            finally:
                self._places.release()
