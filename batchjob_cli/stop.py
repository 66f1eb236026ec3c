"""`batchjob stop` and `batchjob cancel`: end an active run, or one that has not started."""

import os
import signal
import sys
import time
from pathlib import Path

from batchjob.local_runs import history
from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import RUNS
from batchjob.local_runs.record import Run
from batchjob.runtime.settings import argument
from batchjob.runtime.values import duration
from batchjob.schedulers.states import JobState
from batchjob_cli.client import remote_runs
from batchjob_cli.client.problems import RefusedError
from batchjob_cli.client.selection import one, parser
from batchjob_cli.run import cgroup, stop_request
from batchjob_cli.run.abandoned import end_abandoned

_PATIENCE_SECONDS = 10.0  # in addition to the grace period, for the supervisor to record the end


def run(arguments: list[str]) -> int:
    """`stop`: SIGTERM, and SIGKILL after the grace. Raises SettingsError."""
    made = parser("stop", "Stops a run: SIGTERM to its processes, SIGKILL after a grace period.")
    made.add_argument("--grace", **argument(duration), default=10.0,
                      help="time between SIGTERM and SIGKILL (default: 10s)")  # fmt: skip
    given = made.parse_args(arguments)
    if given.server:
        return remote_runs.end(given, "stop", given.grace)
    data, chosen = one(given)
    return _told(end(data, chosen, given.grace))


def cancel(arguments: list[str]) -> int:
    """`cancel`: a run that still waits for its time. Raises SettingsError."""
    given = parser("cancel", "Cancels a run that has not started yet.").parse_args(arguments)
    if given.server:
        return remote_runs.end(given, "cancel", 0.0)
    data, chosen = one(given)
    if chosen.state not in (JobState.PENDING, JobState.VANISHED) and chosen.state.live:
        raise RefusedError(f"run {chosen.jobid} has started; end it with batchjob stop")
    return _told(end(data, chosen, 0.0))


def _told(run: Run) -> int:
    if run.state == JobState.VANISHED:
        print(f"batchjob: run {run.jobid} had lost its supervisor; it has no processes left")
        return 0
    if run.state.live:
        print(f"batchjob: run {run.jobid} has not ended yet", file=sys.stderr)
        return 1
    print(f"batchjob: run {run.jobid}: {run.status}")
    return 0


def end(data: Path, chosen: Run, grace: float) -> Run:
    """End a run; returns its state, which may still be active. Raises SettingsError."""
    jobid = chosen.jobid
    if chosen.by != "run":
        raise RefusedError(
            f"{jobid} is work inside process {chosen.supervisor.pid}; stop that program instead"
        )
    if chosen.node != os.uname().nodename:
        raise RefusedError(f"run {jobid} is on {chosen.node}; stop it there")
    if chosen.state == JobState.VANISHED:
        end_abandoned(data / RUNS)
        if jobid in cgroup.existing():
            raise RefusedError(
                f"run {jobid} has lost its supervisor, and its processes belong to {chosen.user}"
            )
        return chosen
    if not chosen.state.live:
        raise RefusedError(f"run {jobid} has already ended: {chosen.status}")
    _ask(data / RUNS, chosen, grace)
    ended = _ended(data, jobid, grace + _PATIENCE_SECONDS)
    stop_request.take(data / RUNS, jobid)  # if the run's user may not delete the request of root
    return chosen if ended is None else ended


def _ask(runs: Path, chosen: Run, grace: float) -> None:
    """Leave a request and send SIGTERM."""
    try:
        stop_request.leave(runs, chosen.jobid, grace)
        if not run_files.signal_supervisor(chosen, signal.SIGTERM):  # the run is just ending
            stop_request.take(runs, chosen.jobid)
    except PermissionError as error:
        stop_request.take(runs, chosen.jobid)
        raise RefusedError(
            f"run {chosen.jobid} of {chosen.user} cannot be ended: {error.strerror}"
        ) from error


def _ended(data: Path, jobid: str, seconds: float) -> Run | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = history.job(jobid, str(data))
        if not found.state.live:
            return found
        time.sleep(0.05)
    return None
