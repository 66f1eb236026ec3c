"""Processes that tests leave behind: their module fails, and they are ended.

Children are looked for after each module: until then, they may belong to one of its fixtures.
`PYTEST_CURRENT_TEST` in their environment names the test that started them. A process that has
left its parent is found at the end of the session by `BATCHJOB_TEST_SESSION`, which it inherited.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.waiting import scaled

SESSION_VARIABLE = "BATCHJOB_TEST_SESSION"
_HELPERS_OF_PYTHON = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


class ProcessId(NamedTuple):
    """A process; its start time tells it from a later one with the same pid."""

    pid: int
    start_ticks: int

    def command_line(self) -> bytes:
        """With null bytes between the words; empty once it has ended."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes()
        return b""

    def test(self) -> str:
        """The test that started it, as pytest had put it into the environment; "" if unknown."""
        with contextlib.suppress(OSError):
            for word in Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0"):
                if word.startswith(b"PYTEST_CURRENT_TEST="):
                    return word.decode(errors="replace").partition("=")[2]
        return ""

    def __str__(self) -> str:
        words = self.command_line().decode(errors="replace").split("\0")
        return f"{self.pid}: {' '.join(words)}({self.test() or 'no test'})"


def children() -> set[ProcessId]:
    """Running children of this process (proc(5), /proc/<pid>/task/<tid>/children)."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found |= {_running(int(pid)) for pid in (task / "children").read_text().split()}
    return {process for process in found if process and not _is_helper(process)}


def session_processes(session: str) -> set[ProcessId]:
    """Running processes other than this one that were started in a session."""
    word, found = f"{SESSION_VARIABLE}={session}\0".encode(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word in (entry / "environ").read_bytes() + b"\0":
                    found.add(_running(int(entry.name)))
    return {process for process in found if process and not _is_helper(process)}


def end_leftovers(processes: set[ProcessId], patience: float = 3.0) -> list[str]:
    """End those that do not end by themselves within `patience` seconds; returns what they are."""
    deadline = time.monotonic() + scaled(patience)
    while left := [each for each in processes if _running(each.pid) == each]:
        if time.monotonic() > deadline:
            names = [str(each) for each in left]
            for each in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            return names
        time.sleep(0.02)
    return []


def _running(pid: int) -> ProcessId | None:
    """None for a zombie and for what has ended (proc(5), /proc/<pid>/stat)."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else ProcessId(pid, int(fields[18]))


def _is_helper(process: ProcessId) -> bool:
    return any(name in process.command_line() for name in _HELPERS_OF_PYTHON)


class ChildrenOfTests:
    """What a module may leave: the children of fixtures that live longer than it.

    It is a plugin: pytest does not call the hooks of a conftest.py for fixtures of the session.
    """

    def __init__(self) -> None:
        self._of_fixtures: set[ProcessId] = set()

    @contextlib.contextmanager
    def fixture_set_up(self, scope: str) -> Iterator[None]:
        """While a fixture of this scope is set up."""
        if scope != "session":
            yield
            return
        before = children()
        yield
        self._of_fixtures |= children() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        with self.fixture_set_up(fixturedef.scope):
            return (yield)

    @contextlib.contextmanager
    def module(self) -> Iterator[None]:
        """While tests of a module and its fixtures run; AssertionError if a process is left."""
        before = children()
        yield
        left = end_leftovers(children() - before - self._of_fixtures)
        assert not left, f"tests left processes behind: {left}"
