"""Limits open streams, each of which holds a connection for as long as a job may run."""

import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from batchjob_stats_server.http.problems import Problem

_RETRY_HEADERS = {"Retry-After": "30"}


class StreamLimit:
    """Counts open streams, in total and by user."""

    def __init__(self, maximum: int, max_per_user: int) -> None:
        self._maximum = maximum
        self._max_per_user = max_per_user
        self._of_user: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def acquire(self, user: Hashable) -> None:
        """Count a stream; raises Problem 429 if the user has too many, 503 if all users have."""
        with self._lock:
            if self._of_user[user] >= self._max_per_user:
                raise Problem(
                    429, f"at most {self._max_per_user} streams of one user at once", _RETRY_HEADERS
                )
            if self._of_user.total() >= self._maximum:
                raise Problem(503, "too many streams are open", _RETRY_HEADERS)
            self._of_user[user] += 1

    def release(self, user: Hashable) -> None:
        """Count a stream as closed."""
        with self._lock:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]

    def open_count(self) -> int:
        """Number of open streams."""
        return self._of_user.total()


class OpenStream(StreamingResponse):
    """A streamed answer that calls `end` however it ends."""

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
