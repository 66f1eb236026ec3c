"""One run from its record to its report."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs.directory import LOGS, RUNS, prepare
from batchjob.local_runs.output import STREAMS, StreamLog
from batchjob.local_runs.record import Run, now, write
from batchjob.local_runs.retention import RunRetention, sweep_daily
from batchjob.quantities.reading import CgroupReading
from batchjob.runtime.times import time_in_words
from batchjob.schedulers.states import JobState
from batchjob_cli.run import cgroup as cgroups
from batchjob_cli.run import life, stop_request
from batchjob_cli.run.abandoned import end_abandoned
from batchjob_cli.run.cgroup import Cgroup, NoCgroup
from batchjob_cli.run.launch import OUR_FAULT, ChildStreams, LaunchError, become_subreaper, launch
from batchjob_cli.run.limits import LimitError, RunLimits, controllers, one_by_one
from batchjob_cli.run.process_tree import ProcessTree
from batchjob_cli.run.queue import Turn
from batchjob_cli.run.request import RunSpecification
from batchjob_cli.run.streams import Channel, Pump, copy_window, open_channel
from batchjob_cli.run.summary import RunOutcome, report
from batchjob_cli.run.supervisor import TAKEN, End, RunSupervisor

TIMED_OUT = 124
"""The exit status where the time limit ended the run, as timeout(1) has it."""
STOPPED = "stopped"
"""The word for a run that somebody ended; one that had not started was cancelled."""
_RETRY_SECONDS = (0.2, 1.0, 3.0)
_LOOK_SECONDS = 0.3  # interval of checking the queue


class Failed(Exception):
    """The run could not be started; it carries the exit status."""

    def __init__(self, message: str, status: int = OUR_FAULT) -> None:
        super().__init__(message)
        self.status = status


class _Started(NamedTuple):
    pid: int
    channels: tuple[Channel, ...]
    pumps: tuple[Pump, ...]


def perform(
    order: RunSpecification, run: Run, mask: set[int], on_start: Callable[[Run], None]
) -> int:
    """Run the command; returns the exit status for our own. Raises Failed.

    `run` has been recorded. `mask`: the signals that were blocked before.
    """
    end_abandoned(order.data / RUNS)
    become_subreaper()
    started = time.monotonic()
    cgroup = _own_cgroup(order, run)
    applied = _limited(order, run, cgroup)
    tree = ProcessTree()
    try:
        run = _allocated(order, run, applied)
        begun = _start(order, run, mask, cgroup)
        life.started(run)
        on_start(run)
        end = _supervisor(order, run, begun, tree, cgroup).run()
        wall = time.monotonic() - started
        reading = cgroup.read() if cgroup else CgroupReading()
    finally:
        for left in cgroup.remove() if cgroup else ():
            say(f"{left}: could not be removed")
    outcome = _outcome(run, end, tree, reading, wall)
    runs = order.data / RUNS
    outcome = outcome._replace(run=_cancelled(outcome.run, end, runs))
    record_end(runs, outcome.run)
    life.ended(outcome.run)
    # Everything is recorded: from now on, a signal may end us like any other program.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for pump in begun.pumps:
        pump.join()
    if end.left_behind:
        say(f"the command left processes behind ({end.left_behind}); they were terminated")
    sweep_daily(order.data, RunRetention())
    if not order.quiet:
        sys.stderr.write(report(outcome))
        sys.stderr.flush()
    return exit_status(end)


def _supervisor(
    order: RunSpecification, run: Run, begun: _Started, tree: ProcessTree, cgroup: Cgroup | None
) -> RunSupervisor:
    def resized() -> None:
        for channel in begun.channels:
            copy_window(channel)

    def asked_to_stop() -> float | None:
        return stop_request.grace(order.data / RUNS, run.jobid)

    return RunSupervisor(
        begun.pid, tree, cgroup, order.time_limit, order.grace, asked_to_stop, resized
    )


def _own_cgroup(order: RunSpecification, run: Run) -> Cgroup | None:
    """The run's cgroup, or None if the process tree must be used. Raises Failed."""
    if order.cgroup == "never":
        return None
    try:
        return cgroups.make(run.jobid, order.limits)
    except (NoCgroup, OSError) as error:
        reason = f"cannot create a cgroup: {error}"
        if order.cgroup == "always" or (any(order.limits) and not order.best_effort):
            flags = ", ".join(controllers(order.limits, 2).values())
            hint = " (use --best-effort to continue without limits)" if flags else ""
            raise Failed(f"{flags}: {reason}{hint}" if flags else reason) from error
        if any(order.limits):
            say(f"{reason}; continuing without limits")
        return None


def _limited(order: RunSpecification, run: Run, cgroup: Cgroup | None) -> RunLimits:
    """Apply the limits; returns those that are in force. Raises Failed."""
    if cgroup is None:
        if any(order.limits) and order.cgroup == "never":
            flags = ", ".join(controllers(order.limits, 2).values())
            if not order.best_effort:
                raise Failed(f"{flags}: limits need a cgroup, but --cgroup=never is set")
            say(f"{flags}: limits need a cgroup; continuing without")
        return RunLimits()
    applied = RunLimits()
    for each in one_by_one(order.limits):
        try:
            cgroup.limit(each, run.work_dir or "/")
        except (LimitError, OSError) as error:
            if not order.best_effort:
                cgroup.remove()
                raise Failed(f"{error} (use --best-effort to continue without)") from error
            say(f"{error}; continuing without")
        else:
            applied = applied.plus(each)
    if order.cpus:
        cgroup.bind(run.cpu_list)  # if possible; each process is bound as well
    return applied


def _allocated(order: RunSpecification, run: Run, applied: RunLimits) -> Run:
    """Record the limits that are in force."""
    limited = run._replace(
        allocated_cpus=min(filter(None, (applied.cpus, len(order.cpus))), default=None),
        allocated_memory_bytes=applied.memory_bytes,
        io_limit_bytes_per_second=applied.io_bytes_per_second,
    )
    if limited != run:
        # The run is already on record, and its end will include this.
        with contextlib.suppress(OSError):
            write(order.data / RUNS, limited)
    return limited


def _start(order: RunSpecification, run: Run, mask: set[int], cgroup: Cgroup | None) -> _Started:
    logs = _logs(order, run)
    channels: tuple[Channel, ...] = ()
    if order.keep_output or order.detach:
        channels = tuple(open_channel(None if order.detach else target) for target in (1, 2))
    streams = (
        ChildStreams(0, *(channel.inner for channel in channels))
        if channels
        else ChildStreams(0, 1, 2)
    )
    try:
        join = cgroup.join if cgroup else None
        pid = launch(order.command, streams, mask, join, order.cpus)
    except LaunchError as error:
        raise Failed(str(error), error.status) from error
    finally:
        for channel in channels:
            os.close(channel.inner)
    pumps = tuple(map(Pump, STREAMS, channels, logs)) if channels else ()
    for pump in pumps:
        pump.start()
    return _Started(pid, channels, pumps)


def _logs(order: RunSpecification, run: Run) -> tuple[StreamLog | None, ...]:
    if order.keep_output:
        try:
            directory = prepare(order.data, LOGS) / run.jobid
            directory.mkdir(mode=0o700)  # fail if another user has created it in the meantime
            return tuple(StreamLog(directory, stream, order.log_bytes) for stream in STREAMS)
        except OSError as error:
            say(f"the output is not kept: {error.filename}: {error.strerror}")
    return tuple(None for _ in STREAMS)


def _outcome(
    run: Run, end: End, tree: ProcessTree, reading: CgroupReading, wall: float
) -> RunOutcome:
    """The kernel's totals for the cgroup if there are any, else those for the processes."""
    used = tree.usage
    user, system = reading.cpu_user_seconds, reading.cpu_system_seconds
    if user is None or system is None:
        user, system = used.user_cpu_seconds, used.system_cpu_seconds
    peak = reading.memory_peak
    signalled = os.WIFSIGNALED(end.status)
    ended = run._replace(
        state=_state(end, reading),
        end_time=now(),
        wall_seconds=round(wall, 6),
        exit_code=None if signalled else os.WEXITSTATUS(end.status),
        exit_signal=os.WTERMSIG(end.status) if signalled else None,
        user_cpu_seconds=round(user, 6),
        system_cpu_seconds=round(system, 6),
        peak_memory_bytes=used.peak_memory_bytes if peak is None else int(peak),
        read_bytes=used.read_bytes,
        written_bytes=used.written_bytes,
    )
    throttled = reading.cpu_throttled_seconds if run.allocated_cpus else None
    return RunOutcome(ended, wall, reading.io, throttled)


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
    """A run whose end was requested counts as cancelled, whatever its command returned."""
    asked = stop_request.take(runs, run.jobid)
    if asked is None or end.timed_out:
        return run
    return run._replace(state=JobState.CANCELLED, state_word=STOPPED, cancelled_by=asked.user)


def exit_status(end: End) -> int:
    """The command's own; 128 + n if signal n ended it; 124 if the time limit did."""
    if end.timed_out:
        return TIMED_OUT
    if os.WIFSIGNALED(end.status):
        return 128 + os.WTERMSIG(end.status)
    return os.WEXITSTATUS(end.status)


def record_end(runs: Path, run: Run) -> None:
    """Write the end of a run, with retries."""
    for pause in (*_RETRY_SECONDS, None):
        try:
            write(runs, run)
            return
        except OSError as error:
            if pause is None:
                say(f"the end of run {run.jobid} could not be recorded: {runs}: {error.strerror}")
                return
            time.sleep(pause)


@contextlib.contextmanager
def recorded(order: RunSpecification, run: Run) -> Iterator[None]:
    """Record the run; if it cannot run, its end is recorded too. Raises Failed."""
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
        end = now()
        start = end if run.start_time is None else run.start_time
        ended = run._replace(
            state=JobState.FAILED, start_time=start, end_time=end, exit_code=error.status,
            error=str(error),
        )  # fmt: skip
        record_end(runs, ended)
        life.ended(ended)
        raise


def why_it_waits(order: RunSpecification, turn: Turn | None) -> str:
    """Its start time is in the future, or others are first; "" if it may start. Raises OSError."""
    if order.start_at is not None and order.start_at > time.time():
        return f"starts at {time_in_words(order.start_at)}"
    return turn.reason if turn else ""


def wait_for_start(order: RunSpecification, run: Run, turn: Turn | None) -> Run | None:
    """Wait until it may start; None: cancelled, and recorded as such. Raises OSError."""
    runs = order.data / RUNS
    life.waiting(run)
    while reason := why_it_waits(order, turn):
        if reason != run.reason:
            run = run._replace(reason=reason)
            record_end(runs, run)
            life.waiting(run)
        if _ended_while_waiting(_pause(order)):
            asked = stop_request.take(runs, run.jobid)
            by = asked.user if asked else run.user
            ended = run._replace(state=JobState.CANCELLED, end_time=now(), cancelled_by=by)
            record_end(runs, ended)
            life.ended(ended)
            return None
    started = run._replace(state=JobState.RUNNING, start_time=now(), reason="None")
    record_end(runs, started)
    return started


def _pause(order: RunSpecification) -> float:
    left = (order.start_at or 0.0) - time.time()
    return min(left, 30.0) if left > 0 else _LOOK_SECONDS  # the clock may be set


def _ended_while_waiting(seconds: float) -> bool:
    taken = signal.sigtimedwait(TAKEN, seconds)
    if taken is not None and taken.si_signo == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return taken is not None and taken.si_signo in ending


def say(message: str) -> None:
    """Print a line for the user."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"batchjob: {message}\n")
        sys.stderr.flush()
