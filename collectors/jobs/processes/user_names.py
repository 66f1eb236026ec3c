"""Login names of uids, from a name service that may hang (getpwuid(3) over LDAP, SSSD, NIS)."""

import pwd
import queue
import threading
import time
from collections.abc import Callable

from batchjob.runtime.formatting import replace_non_utf8

DEADLINE_SECONDS = 1.0
KNOWN_SECONDS = 3600.0
UNKNOWN_SECONDS = 60.0


def _look_up(uid: int) -> str | None:
    try:
        return replace_non_utf8(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return None


class UserNames:
    """Queries the name service in a thread of its own, so that every wait is bounded.

    While one query hangs, all others are answered "unknown" at once.
    """

    def __init__(
        self,
        look_up: Callable[[int], str | None] = _look_up,
        deadline: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._deadline = deadline
        self._clock = clock
        self._cache: dict[int, tuple[str | None, float]] = {}
        self._queries: queue.SimpleQueue[tuple[int, threading.Event]] = queue.SimpleQueue()
        self._hung = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def user(self, uid: int) -> str | None:
        """The login name; None if there is none or the service does not answer in time."""
        cached = self._cache.get(uid)
        if cached is not None and self._clock() < cached[1]:
            return cached[0]
        if self._hung.is_set():
            return None
        self._start()
        answered = threading.Event()
        self._queries.put((uid, answered))
        if not answered.wait(self._deadline):
            self._hung.set()
            return None
        return self._cache[uid][0]

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="names", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            uid, answered = self._queries.get()
            try:
                name = self._look_up(uid)
            except OSError:
                name = None
            valid = KNOWN_SECONDS if name is not None else UNKNOWN_SECONDS
            self._cache[uid] = (name, self._clock() + valid)
            self._hung.clear()
            answered.set()
