"""`batchjob stop`, `cancel` and `delete`: end a run, keep one from starting, and forget one.

Only the poller writes rows of the database: it finds `<data>/runs/<uuid>.deleted` and deletes the
row. That file is written first, so that an interruption leaves nothing half deleted. Where another
user's file has that name, it is `<uuid>.<random>.deleted`.
"""

import math
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Collection
from pathlib import Path

from batchjob.local_runs import history
from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import LOGS, RUNS, SAMPLES, data_directory
from batchjob.local_runs.record import TOMBSTONE, Run
from batchjob.runtime.formatting import format_count
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.user_files import other_name, touch_own
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
    parser.add_argument("--grace", type=duration, default=10.0,
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
        print(f"batchjob: run {run.jobid}: its `batchjob run` was gone, and no process is left")
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
                f"run {jobid}: its `batchjob run` is gone, and its processes belong to {run.user}"
            )
        # Without a cgroup, only the ids tell; they may be another program's by now.
        if left := processes_led_by(run.supervisor.pid):
            raise RefusedError(
                f"run {jobid}: its `batchjob run` is gone, and may have left these processes "
                f"behind: {', '.join(map(str, left))}; end them with kill"
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


def delete(arguments: list[str]) -> int:
    """`delete`: one run, or all that have ended. Raises SettingsError."""
    parser = run_parser(
        "delete", "Deletes a run: record, samples and output. It must have ended.", "?"
    )
    add = parser.add_argument
    add("--all-ended", action="store_true", help="delete all of your runs that have ended")
    add("--yes", "-y", action="store_true", help="do not ask for confirmation")
    given = parser.parse_args(arguments)
    if (given.job is None) != given.all_ended:
        raise SettingsError("expected a JOB, or --all-ended")
    if given.server:
        if given.all_ended:
            _confirm(f"Delete all of your ended runs on {given.server}?", given.yes)
        return remote_runs.delete(given)
    if given.job is not None:
        data, chosen = find_run(given)
        if chosen.state.is_live:
            raise RefusedError(f"run {chosen.jobid} has not ended; end it with batchjob stop")
        return _delete_runs(data, [chosen])
    data = data_directory(given.data)
    own = [run for run in history.all_runs(data) if run.uid == os.geteuid()]
    ended = [run for run in own if not run.state.is_live]
    if ended:
        word = "run that has" if len(ended) == 1 else "runs that have"
        _confirm(f"Delete {len(ended)} {word} ended, with samples and output?", given.yes)
    return _delete_runs(data, ended, f"; {len(own) - len(ended)} not ended")


def _confirm(question: str, yes: bool) -> None:
    """Ask for confirmation on a terminal; raises SettingsError, RefusedError."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError("--all-ended: cannot ask for confirmation here; use --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("nothing was deleted")


def _delete_runs(data: Path, runs: list[Run], more: str = "") -> int:
    failed = 0
    for each in runs:
        try:
            delete_run(data, each)
        except OSError as error:
            failed += 1
            where = error.filename or data
            print(f"batchjob: run {each.jobid}: {where}: {error.strerror}", file=sys.stderr)
    print(f"batchjob: deleted {format_count(len(runs) - failed, 'run')}{more}")
    return 1 if failed else 0


def delete_run(data: Path, run: Run) -> None:
    """Delete a run that has ended; raises OSError."""
    tombstone = data / RUNS / f"{run.jobid}{TOMBSTONE}"
    try:
        touch_own(tombstone)
    except OSError:
        touch_own(other_name(tombstone))
    for kind in (LOGS, SAMPLES):
        directory = data / kind / run.jobid
        if _is_directory_of(directory, (0, run.uid, os.geteuid())):
            shutil.rmtree(directory)
    (data / RUNS / f"{run.jobid}.json").unlink(missing_ok=True)


def _is_directory_of(path: Path, owners: Collection[int]) -> bool:
    """Whether it is a directory, no link, of one of these users."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid in owners
