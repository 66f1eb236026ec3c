"""Answers that are made in the event loop, for as long as that is quick.

To hand a question to a thread and its answer back costs a tenth of a page of jobs, and where a
processor has to be woken for it, now and then more than all the rest. So what reads a few rows by
an index is looked up where it was asked. Nobody else is served meanwhile: it is not tried while
others work at something costly, it is given up where a disk is slow or the database locked, and
threads do all of it then for a second, and for longer when that happens again.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import sqlalchemy as sa
from prometheus_client import Counter
from sqlalchemy.engine import Connection, Engine

from batchjob_stats_db.fetching import is_free

log = logging.getLogger(__name__)

T = TypeVar("T")

SECONDS = 0.03
"""After so long a look-up is given up."""
_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class Quick:
    """Asks SQLite, by an engine of `quick_reader`; one event loop does so."""

    def __init__(
        self,
        engine: Engine,
        tried: Counter,
        busy: Callable[[], float] = lambda: 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`tried` counts by `result`; `busy`: how many work at something costly."""
        self._engine = engine
        self._tried = tried
        self._busy = busy
        self._clock = clock
        self._pause = _PAUSE_SECONDS
        self._paused_until = float("-inf")

    def ask(self, make: Callable[[Connection], T]) -> T | None:
        """What `make` finds; None: it is to be asked by a thread."""
        begun = self._clock()
        if begun < self._paused_until or self._busy() or not is_free():
            return None
        try:
            with self._engine.connect() as db:
                made = make(db)
        except (sa.exc.OperationalError, sa.exc.TimeoutError) as error:
            self._give_up(str(error.orig) if isinstance(error, sa.exc.DBAPIError) else str(error))
            return None
        if self._clock() - begun > SECONDS:
            self._give_up("slow")
        else:
            self._tried.labels("answered").inc()
        return made

    def _give_up(self, reason: str) -> None:
        """For a second, and for twice as long as before where that was not long ago."""
        now = self._clock()
        recent = now - self._paused_until < _LONGEST_PAUSE_SECONDS
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS) if recent else _PAUSE_SECONDS
        self._paused_until = now + self._pause
        self._tried.labels("given up").inc()
        log.debug("threads make all pages for %g s: %s", self._pause, reason)

    def stop(self) -> None:
        """Close the connection."""
        self._engine.dispose()
