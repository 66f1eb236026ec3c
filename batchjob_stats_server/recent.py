"""Answers of the last moment: what many ask at once is looked up once."""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

_SECONDS = 1.0
_MOST = 100


class Recent:
    """Keeps what was made for a key for a moment; who asks while it is made waits for it.

    A key says everything that the value depends on but the database: what was asked, and what the
    one who asks may see. What cannot be made is told to all who wait for it, and not kept.
    """

    def __init__(
        self,
        seconds: float = _SECONDS,
        most: int = _MOST,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._values: dict[Hashable, Future[Any]] = {}
        self._ends: deque[tuple[float, Hashable]] = deque()  # of those that are made
        self._lock = threading.Lock()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value for this key."""
        own: Future[T] = Future()
        with self._lock:
            self._forget()
            found: Future[T] = self._values.setdefault(key, own)
        if found is own:
            self._fill(key, own, make)
        return found.result()

    def _fill(self, key: Hashable, own: Future[Any], make: Callable[[], Any]) -> None:
        try:
            own.set_result(make())
        except BaseException as error:
            own.set_exception(error)
            with self._lock:
                del self._values[key]
        else:
            with self._lock:
                self._ends.append((self._clock() + self._seconds, key))

    def _forget(self) -> None:
        now = self._clock()
        while self._ends and (self._ends[0][0] <= now or len(self._ends) > self._most):
            del self._values[self._ends.popleft()[1]]
