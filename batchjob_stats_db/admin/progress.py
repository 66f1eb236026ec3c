"""Progress of a long command: a bar on a terminal, occasional lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

_WIDTH = 30
_LINE_SECONDS = 30.0


class Progress:
    """Shows progress from `begin` to `end`."""

    def __init__(
        self,
        title: str,
        begin: float,
        end: float,
        out: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._begin = begin
        self._length = max(end - begin, 1.0)
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._clock = clock
        self._started = clock()
        self._last_shown = self._started

    def update(self, position: float, note: str = "") -> None:
        """Show that `position` has been reached."""
        now = self._clock()
        if not self._terminal and now - self._last_shown < _LINE_SECONDS:
            return
        self._last_shown = now
        share = min(max((position - self._begin) / self._length, 0.0), 1.0)
        left = (now - self._started) * (1 - share) / share if share > 0.01 else None
        rest = "" if left is None else f", {left:.0f} s left"
        if self._terminal:
            bar = "#" * round(share * _WIDTH)
            self._out.write(f"\r{self._title} [{bar:<{_WIDTH}}] {share:4.0%} {note}{rest}\x1b[K")
        else:
            self._out.write(f"{self._title}: {share:.0%} {note}{rest}\n")
        self._out.flush()

    @classmethod
    @contextmanager
    def show_elapsed(cls, title: str, out: IO[str] | None = None) -> Iterator[None]:
        """Show the elapsed time of work without known progress, each second."""
        progress = cls(title, 0, 1, out)
        stop = threading.Event()
        thread = threading.Thread(target=progress._print_elapsed, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            progress.clear()

    def _print_elapsed(self, stop: threading.Event) -> None:
        while not stop.wait(1.0):
            now = self._clock()
            if self._terminal or now - self._last_shown >= _LINE_SECONDS:
                self._last_shown = now
                begin, end = ("\r", "\x1b[K") if self._terminal else ("", "\n")
                self._out.write(f"{begin}{self._title}: {now - self._started:.0f} s{end}")
                self._out.flush()

    def clear(self) -> None:
        """Remove the bar from a terminal, for what is printed next."""
        if self._terminal and self._last_shown != self._started:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def finish(self, note: str = "") -> None:
        """End the bar."""
        before = "\r" if self._terminal else ""
        after = "\x1b[K" if self._terminal else ""
        self._out.write(f"{before}{self._title}: {note or 'done'}{after}\n")
        self._out.flush()
