"""Limits open streams, each of which holds a connection for as long as a job may run."""

import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from batchjob_stats_server.http.problems import Problem

_AGAIN = {"Retry-After": "30"}


class StreamLimit:
    """Counts them, in total and by user."""

    def __init__(self, maximum: int, maximum_of_user: int) -> None:
        self._maximum = maximum
        self._maximum_of_user = maximum_of_user
        self._of_user: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def enter(self, user: Hashable) -> None:
        """Take a place; Problem 429 if the user has enough, 503 if all together have."""
        with self._lock:
            if self._of_user[user] >= self._maximum_of_user:
                raise Problem(
                    429, f"at most {self._maximum_of_user} streams of one user at once", _AGAIN
                )
            if self._of_user.total() >= self._maximum:
                raise Problem(503, "too many streams are open", _AGAIN)
            self._of_user[user] += 1

    def leave(self, user: Hashable) -> None:
        """Release a place."""
        with self._lock:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]

    def open(self) -> int:
        """How many there are."""
        return self._of_user.total()


class OpenStream(StreamingResponse):
    """An answer that releases its place however it ends; `end` is called then."""

    def __init__(
        self, lines: AsyncIterator[bytes], end: Callable[[], None], **options: Any
    ) -> None:
        super().__init__(lines, **options)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines as they arrive."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()
