"""Counts the files and functions of this project that a piece of work passes through."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_REPOSITORY = Path(__file__).parents[2]
_PACKAGES = tuple(
    f"{_REPOSITORY / name}/"
    for name in (
        "batchjob", "batchjob_cli", "batchjob_exporter", "batchjob_stats_db",
        "batchjob_stats_server", "collectors",
    )
)  # fmt: skip
_INLINED = re.compile(r"\.<locals>\.<(listcomp|dictcomp|setcomp|genexpr)>")  # in later Pythons


class Crossed(NamedTuple):
    """What was passed through."""

    files: int
    functions: int


class Recorder:
    """Records calls while `recording`, in this thread and in threads that start later."""

    def __init__(self) -> None:
        self._is_on = False
        self._functions: set[tuple[str, str]] = set()

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if self._is_on and event == "call" and code.co_filename.startswith(_PACKAGES):
            self._functions.add((code.co_filename, _INLINED.sub("", code.co_qualname)))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the profiler; threads that are to be recorded must start after this."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is called meanwhile."""
        self._functions.clear()
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def crossed(self) -> Crossed:
        """Of the last recording."""
        files = {file for file, _ in self._functions}
        return Crossed(len(files), len(self._functions))
