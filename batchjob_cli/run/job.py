"""One run from its record to its report."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.data import LOGS, RUNS, prepare
from batchjob.keep import Keep, sweep_daily
from batchjob.run_logs import STREAMS, StreamLog
from batchjob.runs import Run, write
from batchjob.states import JobState
from batchjob_cli.run import cgroup as cgroups
from batchjob_cli.run import stop_request
from batchjob_cli.run.abandoned import end_abandoned
from batchjob_cli.run.cgroup import Cgroup, NoCgroup
from batchjob_cli.run.launch import OUR_FAULT, LaunchError, Streams, become_subreaper, launch
from batchjob_cli.run.limits import LimitError, controllers
from batchjob_cli.run.order import Order
from batchjob_cli.run.report import Outcome, report
from batchjob_cli.run.streams import Channel, Pump, copy_window, open_channel
from batchjob_cli.run.supervise import TAKEN, End, Supervisor
from batchjob_cli.run.tree import Tree
from collectors.jobs.reading import CgroupReading

TIMED_OUT = 124
"""The exit status where the time limit ended the run, as timeout(1) has it."""
_RETRY_SECONDS = (0.2, 1.0, 3.0)


class Failed(Exception):
    """The run could not be begun; the exit status goes with it."""

    def __init__(self, message: str, status: int = OUR_FAULT) -> None:
        super().__init__(message)
        self.status = status


class _Started(NamedTuple):
    pid: int
    channels: tuple[Channel, ...]
    pumps: tuple[Pump, ...]


def perform(order: Order, run: Run, mask: set[int], on_start: Callable[[], None]) -> int:
    """Run the command; the exit status that is to be ours. Raises Failed.

    `run` is on record. `mask`: the signals that were blocked before.
    """
    end_abandoned(order.data / RUNS)
    become_subreaper()
    started = time.monotonic()
    cgroup = _own_cgroup(order, run)
    tree = Tree()
    try:
        begun = _start(order, run, mask, cgroup)
        on_start()
        end = _supervisor(order, run, begun, tree, cgroup).run()
        wall = time.monotonic() - started
        reading = cgroup.read() if cgroup else CgroupReading()
    finally:
        for left in cgroup.remove() if cgroup else ():
            say(f"{left}: could not be removed")
    outcome = _outcome(order, run, end, tree, reading, wall)
    runs = order.data / RUNS
    outcome = outcome._replace(run=_cancelled(outcome.run, end, runs))
    record_end(runs, outcome.run)
    # All is on record: from here on a signal may end us as it does any other program.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for pump in begun.pumps:
        pump.join()
    if end.left_behind:
        say(f"the command left processes behind ({end.left_behind}); they were ended")
    sweep_daily(order.data, Keep())
    if not order.quiet:
        sys.stderr.write(report(outcome))
        sys.stderr.flush()
    return exit_status(end)


def _supervisor(
    order: Order, run: Run, begun: _Started, tree: Tree, cgroup: Cgroup | None
) -> Supervisor:
    def resized() -> None:
        for channel in begun.channels:
            copy_window(channel)

    def asked_to_stop() -> float | None:
        return stop_request.grace(order.data / RUNS, run.jobid)

    return Supervisor(
        begun.pid, tree, cgroup, order.time_limit, order.grace, asked_to_stop, resized
    )


def _own_cgroup(order: Order, run: Run) -> Cgroup | None:
    """The run's cgroup with its limits, or None where the process tree must do. Raises Failed."""
    cgroup, reason = None, "--cgroup never"
    if order.cgroup != "never":
        try:
            cgroup = cgroups.make(run.jobid, order.limits)
        except (NoCgroup, OSError) as error:
            reason = f"no cgroup can be made: {error}"
            if order.cgroup == "always":
                raise Failed(reason) from error
    try:
        if cgroup is not None:
            cgroup.limit(order.limits, run.work_dir or "/")
        elif any(order.limits):
            flags = ", ".join(controllers(order.limits, 2).values())
            raise LimitError(f"{flags}: {reason}")
    except (LimitError, OSError) as error:
        if not order.best_effort:
            if cgroup is not None:
                cgroup.remove()
            raise Failed(f"{error} (--best-effort goes on without)") from error
        say(f"{error}; going on without")
    return cgroup


def _start(order: Order, run: Run, mask: set[int], cgroup: Cgroup | None) -> _Started:
    logs = _logs(order, run)
    channels: tuple[Channel, ...] = ()
    if order.keep_output or order.detach:
        channels = tuple(open_channel(None if order.detach else target) for target in (1, 2))
    streams = Streams(0, *(channel.inner for channel in channels)) if channels else Streams(0, 1, 2)
    try:
        pid = launch(order.command, streams, mask, cgroup.join if cgroup else None)
    except LaunchError as error:
        raise Failed(str(error), error.status) from error
    finally:
        for channel in channels:
            os.close(channel.inner)
    pumps = tuple(map(Pump, STREAMS, channels, logs)) if channels else ()
    for pump in pumps:
        pump.start()
    return _Started(pid, channels, pumps)


def _logs(order: Order, run: Run) -> tuple[StreamLog | None, ...]:
    if order.keep_output:
        try:
            directory = prepare(order.data, LOGS, run.jobid)
            return tuple(StreamLog(directory, stream, order.log_bytes) for stream in STREAMS)
        except OSError as error:
            say(f"the output is not kept: {error.filename}: {error.strerror}")
    return tuple(None for _ in STREAMS)


def _outcome(
    order: Order, run: Run, end: End, tree: Tree, reading: CgroupReading, wall: float
) -> Outcome:
    """The kernel's sums for the cgroup where there are any, else those for the processes."""
    used = tree.usage
    user, system = reading.cpu_user_seconds, reading.cpu_system_seconds
    if user is None or system is None:
        user, system = used.user_cpu_seconds, used.system_cpu_seconds
    peak = reading.memory_peak
    read, written = used.read_bytes, used.written_bytes
    if reading.io is not None:
        read = sum(int(each.read_bytes) for each in reading.io.values())
        written = sum(int(each.written_bytes) for each in reading.io.values())
    signalled = os.WIFSIGNALED(end.status)
    ended = run._replace(
        state=_state(end, reading),
        end_time=int(time.time()),
        wall_seconds=round(wall, 6),
        exit_code=None if signalled else os.WEXITSTATUS(end.status),
        exit_signal=os.WTERMSIG(end.status) if signalled else None,
        user_cpu_seconds=round(user, 6),
        system_cpu_seconds=round(system, 6),
        peak_memory_bytes=used.peak_memory_bytes if peak is None else int(peak),
    )
    throttled = reading.cpu_throttled_seconds if order.limits.cpus else None
    return Outcome(ended, wall, order.limits.cpus, read, written, throttled)


def _state(end: End, reading: CgroupReading) -> JobState:
    if end.timed_out:
        return JobState.TIMEOUT
    if end.status == 0:
        return JobState.COMPLETED
    if reading.oom_kills:
        return JobState.OUT_OF_MEMORY
    number = os.WTERMSIG(end.status) if os.WIFSIGNALED(end.status) else 0
    return JobState.CANCELLED if number in end.sent else JobState.FAILED


def _cancelled(run: Run, end: End, runs: Path) -> Run:
    """Somebody asked for the end: so it was cancelled, whatever the command made of it."""
    asked = stop_request.take(runs, run.jobid)
    if asked is None or end.timed_out:
        return run
    return run._replace(state=JobState.CANCELLED, cancelled_by=asked.user)


def exit_status(end: End) -> int:
    """The command's own; 128 + n where signal n ended it; 124 where the time limit did."""
    if end.timed_out:
        return TIMED_OUT
    if os.WIFSIGNALED(end.status):
        return 128 + os.WTERMSIG(end.status)
    return os.WEXITSTATUS(end.status)


def record_end(runs: Path, run: Run) -> None:
    """Write the end of a run, several times if need be."""
    for pause in (*_RETRY_SECONDS, None):
        try:
            write(runs, run)
            return
        except OSError as error:
            if pause is None:
                say(f"the end of run {run.jobid} is not on record: {runs}: {error.strerror}")
                return
            time.sleep(pause)


@contextlib.contextmanager
def recorded(order: Order, run: Run) -> Iterator[None]:
    """Put the run on record; what keeps it from running ends it there too. Raises Failed."""
    try:
        runs = prepare(order.data, RUNS)
        write(runs, run)
    except OSError as error:
        where = error.filename or order.data
        raise Failed(
            f"the run cannot be recorded: {where}: {error.strerror}"
            " (--data names another directory)"
        ) from error
    try:
        yield
    except Failed as error:
        now = int(time.time())
        start = now if run.start_time is None else run.start_time
        code = error.status
        record_end(
            runs,
            run._replace(state=JobState.FAILED, start_time=start, end_time=now, exit_code=code),
        )
        raise


def wait_for_start(order: Order, run: Run) -> Run | None:
    """Wait until it is time; None: cancelled, and on record as that."""
    assert order.start_at is not None
    runs = order.data / RUNS
    while (left := order.start_at - time.time()) > 0:
        taken = signal.sigtimedwait(TAKEN, min(left, 30.0))  # clocks may be set
        if taken is not None and taken.si_signo in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asked = stop_request.take(runs, run.jobid)
            by = asked.user if asked else run.user
            ended = run._replace(
                state=JobState.CANCELLED, end_time=int(time.time()), cancelled_by=by
            )
            record_end(runs, ended)
            return None
        if taken is not None and taken.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
    started = run._replace(state=JobState.RUNNING, start_time=int(time.time()))
    record_end(runs, started)
    return started


def say(message: str) -> None:
    """A line for whoever watches."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"batchjob: {message}\n")
        sys.stderr.flush()
