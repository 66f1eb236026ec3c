"""A periodic task in a thread of its own."""

import threading
from collections.abc import Callable


class Loop:
    """Calls `step`, which returns the seconds to wait before the next call.

    An exception would end the thread, so `step` must catch what it expects.
    """

    def __init__(self, name: str, step: Callable[[], float], first_pause: float = 0.0) -> None:
        self._name = name
        self._step = step
        self._first_pause = first_pause
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stopping(self) -> bool:
        """Whether `stop` has been called."""
        return self._stopped.is_set()

    def start(self) -> None:
        """Start; the first step runs after the first pause."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; if it hangs in its step, it is abandoned (it is a daemon thread)."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def _run(self) -> None:
        pause = self._first_pause
        while not self._stopped.wait(pause):
            pause = self._step()
