"""Open streams, each of which holds a connection for as long as a job may run."""

import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from batchjob_stats_server.turns import Turns

_RETRY_HEADERS = {"Retry-After": "30"}


class OpenStream(StreamingResponse):
    """A streamed answer, one of a limited number; `end` is called however it ends."""

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        turns: Turns,
        user: Hashable,
        end: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        super().__init__(lines, **options)
        self._turns, self._user, self._end = turns, user, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines as they arrive; raises Problem 429 or 503 if too many streams are open."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            try:
                self._turns.take_now(self._user)
            except TooMany as error:
                raise Problem(429, str(error), _RETRY_HEADERS) from error
            except Unavailable as error:
                raise Problem(503, str(error), _RETRY_HEADERS) from error
            stack.callback(self._turns.release, self._user)
            await super().__call__(scope, receive, send)
