"""A clock that stands still until a test moves it."""


class Clock:
    """`clock()` is the time in seconds; a test sets or adds to `now`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
