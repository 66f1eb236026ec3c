"""Supervises one run: signals, time limits, and how it ended.

Signals are blocked and taken from a queue one by one (sigtimedwait), so that nothing happens at an
arbitrary moment. The command shares our process group: signals of the terminal (Ctrl-C, Ctrl-Z)
reach it from the kernel at the same time as us, and signals sent to us are passed on.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import RUNS
from batchjob.local_runs.record import RunFileError
from batchjob_cli.run import cgroup, stop_request
from batchjob_cli.run.cgroup import Cgroup
from batchjob_cli.run.defaults import RunSpecification
from batchjob_cli.run.process_tree import ProcessTree
from batchjob_cli.run.streams import Channel, copy_window_size

if TYPE_CHECKING:
    from batchjob_cli.run.tree_samples import TreeSamples

FORWARDED_SIGNALS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGTERM,
)  # fmt: skip
QUEUED_SIGNALS = frozenset(
    (*FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
)
_FROM_KERNEL = 0x80  # SI_KERNEL of sigaction(2): sent to the whole process group
# Sampling interval of the process tree, at first and later.
_SAMPLE_SECONDS, _LATER_SAMPLE_SECONDS = 0.25, 1.0
_FIRST_SECONDS = 5.0
_LEFTOVER_SECONDS = 2.0  # from SIGTERM to SIGKILL, for processes that the command left behind


class RunEnd(NamedTuple):
    """How the command ended."""

    status: int  # as returned by wait(2)
    received_signals: frozenset[int]  # signals that the run was sent
    timed_out: bool = False
    leftover_processes: int = 0  # number of processes it left behind, which were terminated


def block_signals() -> set[int]:
    """Queue the signals for us; returns the previous mask.

    Signals that were ignored when we were started (nohup, a shell's background) stay ignored.
    """
    handled = {each for each in QUEUED_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN}
    # Blocking SIGTTOU lets us write to the terminal from the background, even with `stty tostop`.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*handled, signal.SIGTTOU})
    return set(map(int, before))


class RunSupervisor:
    """Supervises one command that has been started."""

    def __init__(
        self,
        spec: RunSpecification,
        jobid: str,
        pid: int,
        channels: Sequence[Channel],
        tree: ProcessTree,
        cgroup: Cgroup | None,
        samples: "TreeSamples | None",
    ) -> None:
        self._spec = spec
        self._jobid = jobid
        self._pid = pid
        self._channels = channels
        self._tree = tree
        self._cgroup = cgroup
        self._samples = samples
        self._received_signals: set[int] = set()
        self._timed_out = False
        self._status: int | None = None
        self._started = time.monotonic()
        limit = spec.time_limit
        self._time_limit_at = None if limit is None else self._started + limit
        self._kill_at: float | None = None

    def run(self) -> RunEnd:
        """Wait until the command and all processes that it left behind have ended."""
        while self._status is None:
            if self._samples is not None:
                self._samples.take()
            elif self._cgroup is None:
                self._tree.sample()
            taken = signal.sigtimedwait(QUEUED_SIGNALS, self._wait_seconds())
            if taken is not None:
                self._process_signal(taken)
            self._reap()
            self._enforce_deadlines()
        left = self._terminate_leftovers()
        return RunEnd(self._status, frozenset(self._received_signals), self._timed_out, left)

    def _wait_seconds(self) -> float:
        if self._cgroup is None:
            young = time.monotonic() - self._started < _FIRST_SECONDS
            return _SAMPLE_SECONDS if young else _LATER_SAMPLE_SECONDS
        waits = [
            at - time.monotonic() for at in (self._time_limit_at, self._kill_at) if at is not None
        ]
        return max(0.0, min(waits, default=3600.0))

    def _process_signal(self, taken: signal.struct_siginfo) -> None:
        number = signal.Signals(taken.si_signo)
        if number in FORWARDED_SIGNALS:
            self._forward(number, taken.si_code == _FROM_KERNEL)
        elif number == signal.SIGTSTP:
            self._suspend_with_command(taken.si_code == _FROM_KERNEL)
        elif number == signal.SIGCONT:
            self._send(number)
        elif number == signal.SIGWINCH:
            for channel in self._channels:
                copy_window_size(channel)
            self._send(number)

    def _forward(self, number: signal.Signals, was_delivered: bool) -> None:
        self._received_signals.add(number)
        runs, is_term = self._spec.data / RUNS, number == signal.SIGTERM
        if is_term and (request := stop_request.read(runs, self._jobid)):
            self._begin_termination(request[1])
        elif not was_delivered:
            self._send(number)

    def _begin_termination(self, grace: float) -> None:
        """Send SIGTERM to every process, and SIGKILL to the remaining ones later."""
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a stopped process would not receive it
        until = time.monotonic() + grace
        self._kill_at = until if self._kill_at is None else min(until, self._kill_at)

    def _suspend_with_command(self, was_delivered: bool) -> None:
        """Ctrl-Z: stop together with the command, as the shell expects, and continue with it."""
        if not was_delivered:
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
        self._status = self._tree.reap().get(self._pid, self._status)

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        if self._time_limit_at is not None and now >= self._time_limit_at:
            self._time_limit_at = None
            self._timed_out = self._status is None
            self._begin_termination(self._spec.grace)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + 1.0  # then kill processes created in the meantime
            self._signal_all(signal.SIGKILL)

    def _terminate_leftovers(self) -> int:
        """Terminate processes that the command left behind; returns their number."""
        left = self._remaining_processes()
        if not left:
            return 0
        self._begin_termination(_LEFTOVER_SECONDS)
        while self._remaining_processes():
            signal.sigtimedwait(QUEUED_SIGNALS, 0.05)
            self._reap()
            self._enforce_deadlines()
        return len(left)

    def _remaining_processes(self) -> set[int]:
        self._reap()
        return (self._cgroup or self._tree).processes()


def end_abandoned(runs: Path) -> None:
    """End the processes, and remove the cgroups, of this machine's unsupervised runs.

    Only runs of this data directory: others are unknown. In a directory that several users share, a
    record may name any cgroup; only cgroups and processes of its owner are affected.
    """
    for jobid, abandoned in cgroup.find_existing().items():
        owner = _abandoned_owner(runs / f"{jobid}.json")
        if owner is not None and abandoned.owners() == {owner}:
            with contextlib.suppress(OSError):  # we may not have permission
                abandoned.signal(signal.SIGKILL)
                abandoned.remove()


def _abandoned_owner(path: Path) -> int | None:
    """The uid of an unsupervised run; None for others."""
    try:
        document = run_files.read(path)
    except (OSError, RunFileError):
        return None
    if document.get("node") != os.uname().nodename or run_files.is_supervisor_alive(document):
        return None
    return int(document["uid"])
