"""Answers of the last moment: what many ask at once is looked up once."""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

_SECONDS = 1.0
_MOST = 1000
_MOST_BYTES = 16 << 20


@dataclass(eq=False)
class _Kept:
    value: asyncio.Future[Any]
    until: float
    waiting: int = 0  # who asked and has no answer yet
    begun: bool = False  # by a thread, which ends it


class Recent:
    """Keeps what was made for a key for a moment; who asks while it is made waits for it.

    A key says everything that the value depends on but the database: what was asked, and what the
    one who asks may see. The moment begins when the value is begun, so that nobody is told what
    the database did not hold within it. What cannot be made is told to all who wait for it, and not
    kept. To be used in one event loop; values are made in threads.
    """

    def __init__(
        self,
        seconds: float = _SECONDS,
        most: int = _MOST,
        clock: Callable[[], float] = monotonic,
        *,
        size: Callable[[Any], int] = lambda _: 0,
        most_bytes: int = _MOST_BYTES,
        threads: CapacityLimiter | None = None,
    ) -> None:
        """`threads`: how many make values at a time, in turn; None: as many as there are."""
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._size = size
        self._most_bytes = most_bytes
        self._threads = threads
        self._kept: dict[Hashable, _Kept] = {}  # the oldest first
        self._sizes: dict[Hashable, int] = {}  # of those that are made
        self._bytes = 0

    async def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value for this key; `make` runs in a thread."""
        self._shrink()
        kept = self._kept.get(key) or self._begin(key, make)
        kept.waiting += 1
        try:
            value: T = await asyncio.shield(kept.value)  # who goes away ends it for nobody else
            return value
        finally:
            kept.waiting -= 1
            if not kept.waiting and not kept.value.done():
                self._give_up(key, kept)

    def forget(self) -> None:
        """Begin everything anew: something was changed here."""
        while self._kept:
            self._drop(next(iter(self._kept)))

    def _give_up(self, key: Hashable, kept: _Kept) -> None:
        """Nobody waits for it any more; what has no thread yet needs none."""
        if kept.begun:
            return  # its thread is not free any sooner
        if self._kept.get(key) is kept:
            self._drop(key)
        kept.value.cancel()

    def _begin(self, key: Hashable, make: Callable[[], Any]) -> _Kept:
        def begun() -> Any:
            kept.begun = True
            return make()

        value = asyncio.ensure_future(to_thread.run_sync(begun, limiter=self._threads))
        kept = self._kept[key] = _Kept(value, self._clock() + self._seconds)
        value.add_done_callback(lambda _: self._ended(key, kept))
        return kept

    def _ended(self, key: Hashable, kept: _Kept) -> None:
        failed = kept.value.cancelled() or kept.value.exception() is not None
        if self._kept.get(key) is not kept:
            return  # forgotten meanwhile
        if failed:
            self._drop(key)
        else:
            self._sizes[key] = self._size(kept.value.result())
            self._bytes += self._sizes[key]
            self._shrink()

    def _shrink(self) -> None:
        """Drop what is too old, and the oldest of what is too much."""
        now = self._clock()
        while self._kept:
            oldest, kept = next(iter(self._kept.items()))
            much = len(self._kept) > self._most or self._bytes > self._most_bytes
            if kept.until > now and not much:
                return
            self._drop(oldest)

    def _drop(self, key: Hashable) -> None:
        del self._kept[key]
        self._bytes -= self._sizes.pop(key, 0)
