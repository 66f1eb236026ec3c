"""Streams that are open at once: each holds a connection for as long as a job may run."""

import threading

from batchjob_stats_server.problems import Problem


class Streams:
    """Counts them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        """One more; Problem 503 where there are enough."""
        with self._lock:
            if self._open >= self._most:
                raise Problem(503, "too many streams are open", {"Retry-After": "30"})
            self._open += 1

    def leave(self) -> None:
        """One less."""
        with self._lock:
            self._open -= 1
