"""Supervises one run: signals, time limits, and how it ended.

Signals are blocked and taken from a queue one by one (sigtimedwait), so that nothing happens at an
arbitrary moment. The command shares our process group: signals of the terminal (Ctrl-C, Ctrl-Z)
reach it from the kernel at the same time as us, and signals sent to us are passed on.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from batchjob_cli.run.cgroup import Cgroup
from batchjob_cli.run.process_tree import Ended, ProcessTree

FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGTERM,
)  # fmt: skip
TAKEN = frozenset((*FORWARDED, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH))
_FROM_KERNEL = 0x80  # SI_KERNEL of sigaction(2): sent to the whole process group
_LOOK_SECONDS, _LATER = 0.25, 1.0  # sampling interval of the process tree, at first and later
_FIRST_SECONDS = 5.0
_LEFTOVER_SECONDS = 2.0  # from SIGTERM to SIGKILL, for processes that the command left behind


class End(NamedTuple):
    """How the command ended."""

    status: int  # as returned by wait(2)
    sent: frozenset[int]  # signals that the run was sent
    timed_out: bool = False
    left_behind: int = 0  # number of processes it left, which were ended


def block_signals() -> set[int]:
    """Queue the signals for us; returns the previous mask.

    Signals that were ignored when we were started (nohup, a shell's background) stay ignored.
    """
    heard = {each for each in TAKEN if signal.getsignal(each) is not signal.SIG_IGN}
    # Blocking SIGTTOU lets us write to the terminal from the background, even with `stty tostop`.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, signal.SIGTTOU})
    return set(map(int, before))


class RunSupervisor:
    """Supervises one command that has been started."""

    def __init__(
        self,
        pid: int,
        tree: ProcessTree,
        cgroup: Cgroup | None,
        time_limit: float | None,
        grace: float,
        on_stop_request: Callable[[], float | None],
        on_resize: Callable[[], None],
    ) -> None:
        self._pid = pid
        self._tree = tree
        self._cgroup = cgroup
        self._grace = grace
        self._on_stop_request = on_stop_request
        self._on_resize = on_resize
        self._sent: set[int] = set()
        self._timed_out = False
        self._status: int | None = None
        self._started = time.monotonic()
        self._end_at = None if time_limit is None else self._started + time_limit
        self._kill_at: float | None = None

    def run(self) -> End:
        """Until the command has ended, and everything it left behind."""
        while self._status is None:
            taken = signal.sigtimedwait(TAKEN, self._patience())
            if taken is not None:
                self._take(taken)
            self._reap()
            self._watch_clock()
            if self._cgroup is None:
                self._tree.look()
        left = self._end_leftovers()
        return End(self._status, frozenset(self._sent), self._timed_out, left)

    def _patience(self) -> float:
        if self._cgroup is None:
            young = time.monotonic() - self._started < _FIRST_SECONDS
            return _LOOK_SECONDS if young else _LATER
        waits = [at - time.monotonic() for at in (self._end_at, self._kill_at) if at is not None]
        return max(0.0, min(waits, default=3600.0))

    def _take(self, taken: signal.struct_siginfo) -> None:
        number = signal.Signals(taken.si_signo)
        if number in FORWARDED:
            self._forward(number, taken.si_code == _FROM_KERNEL)
        elif number == signal.SIGTSTP:
            self._stop_with_it(taken.si_code == _FROM_KERNEL)
        elif number == signal.SIGCONT:
            self._send(number)
        elif number == signal.SIGWINCH:
            self._on_resize()
            self._send(number)

    def _forward(self, number: signal.Signals, it_has_it: bool) -> None:
        self._sent.add(number)
        grace = self._on_stop_request() if number == signal.SIGTERM else None
        if grace is not None:
            self._begin_end(grace)
        elif not it_has_it:
            self._send(number)

    def _begin_end(self, grace: float) -> None:
        """Send SIGTERM to every process, and SIGKILL to the remaining ones later."""
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a stopped process would not receive it
        until = time.monotonic() + grace
        self._kill_at = until if self._kill_at is None else min(until, self._kill_at)

    def _stop_with_it(self, it_has_it: bool) -> None:
        """Ctrl-Z: stop together with the command, as the shell expects, and continue with it."""
        if not it_has_it:
            self._send(signal.SIGTSTP)
        if os.getsid(os.getppid()) == os.getsid(0):  # otherwise nobody could continue us
            os.kill(os.getpid(), signal.SIGSTOP)
            self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._pid, number)

    def _signal_all(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            (self._cgroup or self._tree).signal(number)

    def _reap(self) -> None:
        self._note(self._tree.wait())

    def _note(self, ended: Sequence[Ended]) -> None:
        for each in ended:
            if each.pid == self._pid:
                self._status = each.status

    def _watch_clock(self) -> None:
        now = time.monotonic()
        if self._end_at is not None and now >= self._end_at:
            self._end_at = None
            self._timed_out = self._status is None
            self._begin_end(self._grace)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + 1.0  # then kill processes created in the meantime
            self._signal_all(signal.SIGKILL)

    def _end_leftovers(self) -> int:
        """End processes that the command left behind, as a batch system does; returns how many."""
        left = self._living()
        if not left:
            return 0
        self._begin_end(_LEFTOVER_SECONDS)
        while self._living():
            signal.sigtimedwait(TAKEN, 0.05)
            self._reap()
            self._watch_clock()
        return len(left)

    def _living(self) -> set[int]:
        self._reap()
        return (self._cgroup or self._tree).processes()
