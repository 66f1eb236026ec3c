"""Answers that are made in the event loop, for as long as that is quick.

To hand a question to a thread and its answer back costs a tenth of a page of jobs, and where a
processor has to be woken for it, now and then more than all the rest. So what reads a few rows by
an index is looked up where it was asked. Meanwhile nobody else is served: where a disk is slow, the
database locked or a thread busy with a large answer, the look-up is given up after a moment, and
threads do all of it for a second, and for longer each time that it happens again.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

log = logging.getLogger(__name__)

T = TypeVar("T")

STATEMENT_SECONDS = 0.02
"""The longest that a statement holds up others."""
_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class Quick:
    """Asks a database of its own machine, by an engine of `quick_reader`."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._pause = _PAUSE_SECONDS
        self._paused_until = 0.0

    def ask(self, make: Callable[[Connection], T]) -> T | None:
        """What `make` finds; None: it is to be asked by a thread."""
        if self._clock() < self._paused_until:
            return None
        try:
            with self._engine.connect() as db:
                made = make(db)
        except sa.exc.OperationalError as error:
            log.debug("threads answer for the next %g s: %s", self._pause, error.orig)
            self._paused_until = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            return None
        self._pause = _PAUSE_SECONDS
        return made

    def stop(self) -> None:
        """Close the connection."""
        self._engine.dispose()
