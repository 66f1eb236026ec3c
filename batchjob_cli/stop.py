"""`batchjob stop` and `batchjob cancel`: end an active run, or one that has not started."""

import math
import os
import signal
import sys
import time
from pathlib import Path

from batchjob.local_runs import history
from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import RUNS
from batchjob.local_runs.record import Run
from batchjob.runtime.settings import type_and_metavar
from batchjob.runtime.values import duration
from batchjob.schedulers.states import JobState
from batchjob_cli.client import remote_runs
from batchjob_cli.client.connect import find_run, run_parser
from batchjob_cli.client.problems import RefusedError
from batchjob_cli.run import cgroup, stop_request
from batchjob_cli.run.process_tree import processes_led_by
from batchjob_cli.run.supervisor import end_abandoned

_EXTRA_SECONDS = 10.0  # in addition to the grace period, for the supervisor to record the end


def run(arguments: list[str]) -> int:
    """`stop`: SIGTERM, and SIGKILL after the grace. Raises SettingsError."""
    parser = run_parser(
        "stop", "Stops a run: SIGTERM to its processes, SIGKILL after a grace period."
    )
    parser.add_argument("--grace", **type_and_metavar(duration), default=10.0,
                      help="time between SIGTERM and SIGKILL (default: 10s)")  # fmt: skip
    given = parser.parse_args(arguments)
    if given.server:
        return remote_runs.end_run(given, "stop", given.grace)
    data, run = find_run(given)
    return _print_result(end_run(data, run, given.grace))


def cancel(arguments: list[str]) -> int:
    """`cancel`: a run that still waits for its time. Raises SettingsError."""
    given = run_parser("cancel", "Cancels a run that has not started yet.").parse_args(arguments)
    if given.server:
        return remote_runs.end_run(given, "cancel", 0.0)
    data, run = find_run(given)
    if run.state not in (JobState.PENDING, JobState.VANISHED) and run.state.is_live:
        raise RefusedError(f"run {run.jobid} has started; end it with batchjob stop")
    return _print_result(end_run(data, run, 0.0))


def _print_result(run: Run) -> int:
    if run.state == JobState.VANISHED:
        print(f"batchjob: run {run.jobid} had lost its supervisor; no process of it was found")
        return 0
    if run.state.is_live:
        print(f"batchjob: run {run.jobid} has not ended yet", file=sys.stderr)
        return 1
    print(f"batchjob: run {run.jobid}: {run.status}")
    return 0


def end_run(data: Path, run: Run, grace: float, max_wait: float = math.inf) -> Run:
    """End a run; returns it as it is after `max_wait` seconds at most. Raises SettingsError."""
    jobid = run.jobid
    if run.by != "run":
        raise RefusedError(
            f"{jobid} is work inside process {run.supervisor.pid}; stop that program instead"
        )
    if run.node != os.uname().nodename:
        raise RefusedError(f"run {jobid} is on {run.node}; stop it there")
    if run.state == JobState.VANISHED:
        end_abandoned(data / RUNS)
        if jobid in cgroup.find_existing():
            raise RefusedError(
                f"run {jobid} has lost its supervisor, and its processes belong to {run.user}"
            )
        # Without a cgroup, only the ids tell; they may be another program's by now.
        if left := processes_led_by(run.supervisor.pid):
            raise RefusedError(
                f"run {jobid} has lost its supervisor, and may have left these processes behind: "
                f"{', '.join(map(str, left))}; end them with kill"
            )
        return run
    if not run.state.is_live:
        raise RefusedError(f"run {jobid} has already ended: {run.status}")
    _request_stop(data / RUNS, run, grace)
    ended = _wait_for_end(data, jobid, min(grace + _EXTRA_SECONDS, max_wait))
    stop_request.pop(data / RUNS, jobid)  # if the run's user may not delete the request of root
    return run if ended is None else ended


def _request_stop(runs: Path, run: Run, grace: float) -> None:
    """Leave a request and send SIGTERM."""
    try:
        stop_request.write(runs, run.jobid, grace)
        if not run_files.signal_supervisor(run, signal.SIGTERM):  # the run is just ending
            stop_request.pop(runs, run.jobid)
    except PermissionError as error:
        stop_request.pop(runs, run.jobid)
        raise RefusedError(
            f"run {run.jobid} of {run.user} cannot be ended: {error.strerror}"
        ) from error


def _wait_for_end(data: Path, jobid: str, seconds: float) -> Run | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = history.job(jobid, str(data))
        if not found.state.is_live:
            return found
        time.sleep(0.05)
    return None
