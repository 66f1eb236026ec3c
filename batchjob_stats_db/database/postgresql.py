"""Connections to PostgreSQL that do not wait without end."""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server lets it wait for too long.

    psycopg waits with `wait()`, to which each operation is a generator: it yields what to wait for
    and is sent what is ready, or 0 if nothing was within a short interval.
    """

    answer_seconds = float("inf")

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait for the generator to complete; raises OperationalError after `answer_seconds`."""
        return super().wait(self._limit(gen), *args, **kwargs)

    def _limit(self, generator: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        deadline = time.monotonic() + self.answer_seconds
        try:
            awaited = next(generator)
            while True:
                ready = yield awaited
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"the server has not answered within {self.answer_seconds:g} s"
                    )
                awaited = generator.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
