"""`batchjob stop` and `batchjob cancel`: end a run that goes on, or one that has not begun."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from batchjob import past
from batchjob import runs as run_files
from batchjob.data import RUNS
from batchjob.runs import Run
from batchjob.settings import SettingsError, argument
from batchjob.states import JobState
from batchjob.values import duration
from batchjob_cli.run import cgroup, stop_request
from batchjob_cli.run.abandoned import end_abandoned
from batchjob_cli.run.choose import one, parser

_PATIENCE_SECONDS = 10.0  # beyond the grace, for a supervisor to write the end


def run(arguments: list[str]) -> int:
    """`stop`: SIGTERM, and SIGKILL after the grace. Raises SettingsError."""
    made = parser("stop", "Ends a run: SIGTERM to its processes, SIGKILL after the grace.")
    made.add_argument("--grace", **argument(duration), default=10.0,
                      help="from SIGTERM to SIGKILL (default: 10s)")  # fmt: skip
    given = made.parse_args(arguments)
    data, chosen = one(given)
    return _end(data, chosen, given.grace)


def cancel(arguments: list[str]) -> int:
    """`cancel`: a run that still waits for its time. Raises SettingsError."""
    given = parser("cancel", "Cancels a run that has not started yet.").parse_args(arguments)
    data, chosen = one(given)
    if chosen.state not in (JobState.PENDING, JobState.VANISHED) and chosen.state.live:
        raise SettingsError(f"run {chosen.jobid} has started; batchjob stop ends it")
    return _end(data, chosen, 0.0)


def _end(data: Path, chosen: Run, grace: float) -> int:
    jobid = chosen.jobid
    if chosen.by != "run":
        raise SettingsError(
            f"{jobid} is work inside process {chosen.supervisor.pid}; end that program itself"
        )
    if chosen.node != os.uname().nodename:
        raise SettingsError(f"run {jobid} is on {chosen.node}; end it there")
    if chosen.state == JobState.VANISHED:
        end_abandoned(data / RUNS)
        if jobid in cgroup.existing():
            raise SettingsError(
                f"run {jobid} had lost its supervisor, and goes on as {chosen.user}'s"
            )
        print(f"batchjob: run {jobid} had lost its supervisor; nothing of it runs now")
        return 0
    if not chosen.state.live:
        raise SettingsError(f"run {jobid} has ended already: {chosen.status}")
    _ask(data / RUNS, chosen, grace)
    ended = _ended(data, jobid, grace + _PATIENCE_SECONDS)
    if ended is None:
        print(f"batchjob: run {jobid} has not ended yet", file=sys.stderr)
        return 1
    print(f"batchjob: run {jobid}: {ended.status}")
    return 0


def _ask(runs: Path, chosen: Run, grace: float) -> None:
    """Leave word and send SIGTERM, to no other process that has the pid by now."""
    try:
        with contextlib.ExitStack() as opened:
            process = os.pidfd_open(chosen.supervisor.pid)
            opened.callback(os.close, process)
            if run_files.alive({"supervisor": chosen.supervisor._asdict()}):
                stop_request.leave(runs, chosen.jobid, grace)
                signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ends just now
    except PermissionError as error:
        stop_request.take(runs, chosen.jobid)
        raise SettingsError(f"run {chosen.jobid} is {chosen.user}'s: {error.strerror}") from error


def _ended(data: Path, jobid: str, seconds: float) -> Run | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = past.job(jobid, str(data))
        if not found.state.live:
            return found
        time.sleep(0.05)
    return None
