"""A clock that stands still until a test moves it."""

from collections.abc import Callable
from typing import Any


class Clock:
    """`clock()` is the time in seconds; a test sets or adds to `now`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def set_sqlite_clock(connection: Any, clock: Callable[[], float]) -> None:
    """Let the SQL of a connection of sqlite3 see this time, in whole seconds, as the present."""
    connection.create_function("strftime", 2, lambda _format, _when: str(int(clock())))
