"""Starts the command: in its cgroup, with clean signals, tied to its supervisor."""

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Callable, Sequence, Set
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_FAILURE = struct.Struct("=ii")  # stage, errno

NOT_FOUND, NOT_EXECUTABLE, LAUNCH_FAILED = 127, 126, 125
"""Exit statuses of `env`, `timeout` and other commands that start one (POSIX, env)."""
WRONG_USAGE = 2
"""The exit status where more is asked for than the machine, or the site, gives."""


class RunStartError(Exception):
    """The run, or its command, could not be started; it carries the exit status."""

    def __init__(self, message: str, status: int = LAUNCH_FAILED) -> None:
        super().__init__(message)
        self.status = status


def become_subreaper() -> None:
    """Make orphaned descendants our children, so that we can follow and wait for them.

    prctl(2); raises OSError.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def launch(
    command: Sequence[str],
    streams: Sequence[int],
    mask: set[int],
    join: Callable[[], None] | None,
    cpus: Set[int] = frozenset(),
) -> int:
    """Fork and execute; returns the pid. Raises RunStartError.

    `streams`: descriptors that become its 0, 1 and 2. `mask`: the signals that were blocked when we
    were started. `cpus`: those to which the command is bound. Must be called before any thread is
    started.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _execute_child(command, streams, mask, join, cpus, parent, writer)
    os.close(writer)
    try:
        answer = os.read(reader, _FAILURE.size)
    finally:
        os.close(reader)
    if not answer:
        return pid
    os.waitpid(pid, 0)
    stage, number = _FAILURE.unpack(answer)
    raise _launch_error(command[0], stage, number)


_STAGE_JOIN, _STAGE_EXECUTE = 0, 1


def _execute_child(
    command: Sequence[str],
    streams: Sequence[int],
    mask: set[int],
    join: Callable[[], None] | None,
    cpus: Set[int],
    parent: int,
    writer: int,
) -> NoReturn:
    stage = _STAGE_JOIN
    try:
        if join is not None:
            join()
        if cpus:
            os.sched_setaffinity(0, cpus)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the job must not outlive its supervisor
        if os.getppid() != parent:
            os._exit(LAUNCH_FAILED)
        for number, descriptor in enumerate(streams):
            if descriptor == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(descriptor, number)
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        stage = _STAGE_EXECUTE
        os.execvp(command[0], list(command))  # noqa: S606 (requested by the user, no shell)
    except OSError as error:
        os.write(writer, _FAILURE.pack(stage, error.errno or 0))
    finally:
        os._exit(LAUNCH_FAILED)


def _launch_error(name: str, stage: int, number: int) -> RunStartError:
    reason = os.strerror(number)
    if stage == _STAGE_JOIN:
        return RunStartError(f"the run's cgroup and CPUs: {reason}", LAUNCH_FAILED)
    if number == errno.ENOENT:
        missing = "no such file, or its interpreter is missing" if "/" in name else "not found"
        return RunStartError(f"{name}: {missing}", NOT_FOUND)
    return RunStartError(f"{name}: {reason}", NOT_EXECUTABLE)


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
