"""Executes one run, from its first record to its report."""

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from batchjob.local_runs.directory import LOGS, RUNS, create_directory
from batchjob.local_runs.output import STREAMS, StreamLog
from batchjob.local_runs.record import Run, now, write
from batchjob.local_runs.retention import sweep_daily
from batchjob.quantities.reading import CgroupReading
from batchjob.runtime.times import format_time
from batchjob.runtime.values import format_cpu_list
from batchjob.schedulers.states import JobState
from batchjob_cli.client.running_up import find_running_up
from batchjob_cli.run import cgroup as cgroups
from batchjob_cli.run import stop_request
from batchjob_cli.run.cgroup import Cgroup
from batchjob_cli.run.defaults import RunSpecification
from batchjob_cli.run.gpus import RunGpus
from batchjob_cli.run.launch import LAUNCH_FAILED, RunStartError, become_subreaper, launch
from batchjob_cli.run.limits import CgroupError, RunLimits, required_controllers
from batchjob_cli.run.process_tree import ProcessTree
from batchjob_cli.run.queue import QueuedRun
from batchjob_cli.run.streams import Channel, Pump, open_channel
from batchjob_cli.run.summary import format_report
from batchjob_cli.run.supervisor import QUEUED_SIGNALS, RunEnd, RunSupervisor, end_abandoned

if TYPE_CHECKING:
    from batchjob_cli.run.tree_samples import TreeSamples

TIMED_OUT_STATUS = 124
"""The exit status if the time limit ended the run, as in timeout(1)."""
STOPPED = "stopped"
"""The state of a run that was ended on request; one that had not started was cancelled."""
_RETRY_SECONDS = (0.2, 1.0, 3.0)
_QUEUE_CHECK_SECONDS = 0.3  # interval of checking the queue


def execute_run(
    spec: RunSpecification, run: Run, mask: set[int], on_start: Callable[[Run], None]
) -> int:
    """Run the command; returns the exit status for this process. Raises RunStartError.

    `run` has been recorded. `mask`: the signals that were blocked before.
    """
    end_abandoned(spec.data / RUNS)
    become_subreaper()
    started = time.monotonic()
    cgroup, limits, cpus = _apply_limits(spec, run)
    spec, run = spec._replace(cpus=cpus), run._replace(cpu_list=format_cpu_list(cpus))
    tree = ProcessTree()
    try:
        run = _record_limits(spec, run, limits)
        if not (spec.quiet or spec.detach) and (page := page_url(spec, run)):
            print_message(f"watch it: {page}")
        pid, channels, pumps = _start_command(spec, run, mask, cgroup)
        on_start(run)
        samples = None if cgroup else _open_samples(spec, run, tree)
        end = RunSupervisor(spec, run.jobid, pid, channels, tree, cgroup, samples).run()
        wall = time.monotonic() - started
        reading = cgroup.read() if cgroup else CgroupReading()
    finally:
        for left in cgroup.remove() if cgroup else ():
            print_message(f"{left}: could not be removed")
    runs = spec.data / RUNS
    ended = _apply_stop_request(_ended_run(run, end, tree, reading, wall), end, runs)
    if samples is not None:
        samples.take(ended.end_time)
    record_end(runs, ended)
    # Everything is recorded: from now on, a signal may end us like any other program.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for pump in pumps:
        pump.join()
    if end.leftover_processes:
        processes = "process" if end.leftover_processes == 1 else "processes"
        print_message(f"stopped {end.leftover_processes} {processes} that outlived the command")
    sweep_daily(spec.data)
    if not spec.quiet:
        throttled = reading.cpu_throttled_seconds if run.allocated_cpus else None
        sys.stderr.write(format_report(ended, reading.io, throttled))
        sys.stderr.flush()
    return exit_status(end)


def _open_samples(spec: RunSpecification, run: Run, tree: ProcessTree) -> "TreeSamples | None":
    """None where the commands are installed alone, without the packages that read samples."""
    try:
        from batchjob_cli.run.tree_samples import TreeSamples
    except ModuleNotFoundError:
        return None
    return TreeSamples(spec.data, run, tree)


def page_url(spec: RunSpecification, run: Run) -> str:
    """The URL of the run's page; "" if no `batchjob up` serves its directory."""
    up = find_running_up(spec.data)
    return f"{up.url}/jobs/{run.jobid}" if up else ""


def _create_cgroup(spec: RunSpecification, run: Run) -> tuple[Cgroup | None, str]:
    """The run's cgroup, or None and why the process tree must be used. Raises RunStartError."""
    if spec.cgroup == "never":
        return None, "limits need a cgroup"
    try:
        return cgroups.create(run.jobid, spec.limits), ""
    except (CgroupError, OSError) as error:
        reason = f"cannot create a cgroup: {error}"
        if spec.cgroup == "always":
            raise RunStartError(reason) from error
        return None, reason


def _apply_limits(
    spec: RunSpecification, run: Run
) -> tuple[Cgroup | None, RunLimits, frozenset[int]]:
    """The run's cgroup, if there is one, the limits in force in it, and the CPUs to bind it to.

    A limit that this user may not set is left out. Raises RunStartError if it may not be.
    """
    cgroup, reason = _create_cgroup(spec, run)
    flags = ", ".join(required_controllers(spec.limits, 2).values())
    applied, left_out = RunLimits(), [f"{flags}: {reason}"] if flags else []
    if cgroup:
        applied, left_out = cgroup.limit(spec.limits, run.work_dir or "/")
    if left_out and spec.strict:
        if cgroup:
            cgroup.remove()
        raise RunStartError("; ".join(left_out))
    bound = spec.cpus or (frozenset() if applied.cpus else _some_cpus(spec.limits.cpus))
    if left_out:
        instead = f"; bound to CPU {format_cpu_list(bound)} instead" if bound > spec.cpus else ""
        print_message(f"running without {'; '.join(left_out)}{instead}")
    if cgroup and spec.cpus:
        cgroup.bind_cpus(run.cpu_list)  # if possible; each process is bound as well
    return cgroup, applied, bound


def _some_cpus(number: float | None) -> frozenset[int]:
    """So many CPUs, of which others' runs take other ones; none for a part of a CPU."""
    usable = sorted(os.sched_getaffinity(0))
    if not number or not number.is_integer() or number >= len(usable):
        return frozenset()
    return frozenset(random.sample(usable, int(number)))


def _record_limits(spec: RunSpecification, run: Run, limits: RunLimits) -> Run:
    """Record the limits that are in force, and the GPUs."""
    limited = run._replace(
        allocated_cpus=min(filter(None, (limits.cpus, len(spec.cpus))), default=None),
        allocated_memory_bytes=limits.memory_bytes,
        io_limit_bytes_per_second=limits.io_bytes_per_second,
        allocated_gpus=spec.gpus or None,
        gpu_list=format_cpu_list(spec.gpu_numbers),
    )
    if limited != run:
        # The run is already on record, and its end will include this.
        with contextlib.suppress(OSError):
            write(spec.data / RUNS, limited)
    return limited


def _start_command(
    spec: RunSpecification, run: Run, mask: set[int], cgroup: Cgroup | None
) -> tuple[int, tuple[Channel, ...], tuple[Pump, ...]]:
    """The pid of the command, and what passes its output on. Raises RunStartError."""
    logs = _open_logs(spec, run)
    channels: tuple[Channel, ...] = ()
    if spec.keep_output or spec.detach:
        channels = tuple(open_channel(None if spec.detach else target) for target in (1, 2))
    streams = (0, *(channel.inner for channel in channels)) if channels else (0, 1, 2)
    try:
        join = cgroup.join if cgroup else None
        pid = launch(spec.command, streams, mask, join, spec.cpus)
    finally:
        for channel in channels:
            os.close(channel.inner)
    pumps = tuple(map(Pump, STREAMS, channels, logs)) if channels else ()
    for pump in pumps:
        pump.start()
    return pid, channels, pumps


def _open_logs(spec: RunSpecification, run: Run) -> tuple[StreamLog | None, ...]:
    if spec.keep_output:
        try:
            directory = create_directory(spec.data, LOGS) / run.jobid
            directory.mkdir(mode=0o700)  # fail if another user has created it in the meantime
            return tuple(StreamLog(directory, stream, spec.log_bytes) for stream in STREAMS)
        except OSError as error:
            print_message(f"the output is not kept: {error.filename}: {error.strerror}")
    return tuple(None for _ in STREAMS)


def _ended_run(
    run: Run, end: RunEnd, tree: ProcessTree, reading: CgroupReading, wall: float
) -> Run:
    """The kernel's totals for the cgroup if there are any, else those for the processes."""
    user, system = reading.cpu_user_seconds, reading.cpu_system_seconds
    if user is None or system is None:
        user, system = tree.user_cpu_seconds, tree.system_cpu_seconds
    peak = reading.memory_peak
    signalled = os.WIFSIGNALED(end.status)
    return run._replace(
        state=_final_state(end, reading),
        end_time=now(),
        wall_seconds=round(wall, 6),
        exit_code=None if signalled else os.WEXITSTATUS(end.status),
        exit_signal=os.WTERMSIG(end.status) if signalled else None,
        user_cpu_seconds=round(user, 6),
        system_cpu_seconds=round(system, 6),
        peak_memory_bytes=tree.peak_memory_bytes if peak is None else int(peak),
        read_bytes=tree.read_bytes,
        written_bytes=tree.written_bytes,
    )


def _final_state(end: RunEnd, reading: CgroupReading) -> JobState:
    if end.timed_out:
        return JobState.TIMEOUT
    if end.status == 0:
        return JobState.COMPLETED
    if reading.oom_kills:
        return JobState.OUT_OF_MEMORY
    number = os.WTERMSIG(end.status) if os.WIFSIGNALED(end.status) else 0
    return JobState.CANCELLED if number in end.received_signals else JobState.FAILED


def _apply_stop_request(run: Run, end: RunEnd, runs: Path) -> Run:
    """A run whose end was requested counts as cancelled, whatever its command returned."""
    request = stop_request.pop(runs, run.jobid)
    if request is None or end.timed_out:
        return run
    return run._replace(state=JobState.CANCELLED, state_word=STOPPED, cancelled_by=request[0])


def exit_status(end: RunEnd) -> int:
    """The command's own; 128 + n if signal n ended it; 124 if the time limit did."""
    if end.timed_out:
        return TIMED_OUT_STATUS
    if os.WIFSIGNALED(end.status):
        return 128 + os.WTERMSIG(end.status)
    return os.WEXITSTATUS(end.status)


def record_end(runs: Path, run: Run) -> None:
    """Write the end of a run, with retries if it is on record."""
    is_recorded = (runs / f"{run.jobid}.json").exists()
    for pause in (*_RETRY_SECONDS, None) if is_recorded else (None,):
        try:
            write(runs, run)
            return
        except OSError as error:
            if pause is None and not is_recorded:
                return  # which the user was told at the start
            if pause is None:
                print_message(
                    f"the end of run {run.jobid} could not be recorded: {runs}: {error.strerror}"
                )
                return
            time.sleep(pause)


@contextlib.contextmanager
def record_run(spec: RunSpecification, run: Run) -> Iterator[None]:
    """Record the run, if possible: measuring must not keep the command from running.

    What batchjob itself refuses to start is not on record, unless it has waited, so that somebody
    may look for it; a command that cannot be started is.
    """
    runs = spec.data / RUNS
    try:
        write(create_directory(spec.data, RUNS), run)
    except OSError as error:
        why = spec.no_data or f"{error.filename or spec.data}: {error.strerror}"
        print_message(f"the run is not recorded: {why} (--data names another directory)")
    try:
        yield
    except RunStartError as error:
        if error.status == LAUNCH_FAILED and not run.reason:
            with contextlib.suppress(OSError):
                (runs / f"{run.jobid}.json").unlink()
            raise
        end = now()
        start = end if run.start_time is None else run.start_time
        ended = run._replace(
            state=JobState.FAILED, start_time=start, end_time=end, exit_code=error.status,
            error=str(error),
        )  # fmt: skip
        record_end(runs, ended)
        raise


def wait_reason(spec: RunSpecification, conditions: Iterable[QueuedRun | RunGpus]) -> str:
    """Why the run may not start yet: its start time, or the first condition that is not met.

    "" if it may. Raises OSError.
    """
    if spec.start_at is not None and spec.start_at > time.time():
        return f"starts at {format_time(spec.start_at)}"
    return next((reason for each in conditions if (reason := each.wait_reason)), "")


def wait_for_start(
    spec: RunSpecification, run: Run, conditions: Iterable[QueuedRun | RunGpus]
) -> Run | None:
    """Wait until it may start; None: cancelled, and recorded as such. Raises OSError."""
    runs = spec.data / RUNS
    while reason := wait_reason(spec, conditions):
        if reason != run.reason:
            run = run._replace(reason=reason)
            record_end(runs, run)
        left = (spec.start_at or 0.0) - time.time()
        # In parts, since the clock may be set.
        if _wait_for_end_signal(min(left, 30.0) if left > 0 else _QUEUE_CHECK_SECONDS):
            request = stop_request.pop(runs, run.jobid)
            by = request[0] if request else run.user
            ended = run._replace(state=JobState.CANCELLED, end_time=now(), cancelled_by=by)
            record_end(runs, ended)
            return None
    started = run._replace(state=JobState.RUNNING, start_time=now(), reason="None")
    record_end(runs, started)
    return started


def _wait_for_end_signal(seconds: float) -> bool:
    taken = signal.sigtimedwait(QUEUED_SIGNALS, seconds)
    if taken is not None and taken.si_signo == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return taken is not None and taken.si_signo in ending


def print_message(message: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"batchjob: {message}\n")
        sys.stderr.flush()
