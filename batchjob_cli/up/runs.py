"""The runs of a data directory: started and ended for the API of `batchjob up`, and logged.

Runs have processes of their own, so their files tell what happens to them, whoever started them.
"""

import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from batchjob.local_runs import history
from batchjob.local_runs.record import Run
from batchjob.runtime.formatting import size
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.states import JobState
from batchjob_cli import stop
from batchjob_cli.run.defaults import VARIABLE
from batchjob_stats_server.api.local_runs import NewRun, RunRefusedError

log = logging.getLogger("batchjob.run")

_START_SECONDS = 60.0
_OVERLAP_SECONDS = 5.0  # timestamps of file systems are coarse
_MAX_WAIT_SECONDS = 30.0  # for the end of a run, in a thread of the server
_COMMAND = ("-P", "-m", "batchjob_cli")  # -P: a run's directory may contain modules of others


class LocalRunControl:
    """Runs of one data directory; see RunControl."""

    def __init__(self, data: Path, cluster: str) -> None:
        self.data = data
        self.cluster = cluster

    def start(self, new_run: NewRun, person: str = "", role: str = "") -> Run:
        """See RunControl. Each is supervised by a process of its own, which outlives this one."""
        asked_by = (f"--requested-by={person}", f"--requested-role={role}")
        argv = [sys.executable, *_COMMAND, *_arguments(new_run, self.data, asked_by)]
        # The site's limits are those of this server, whatever the run's environment names.
        site = {VARIABLE: os.environ.get(VARIABLE, "")}
        try:
            done = subprocess.run(  # noqa: S603 (requested by an admin, no shell)
                argv,
                cwd=new_run.directory or None,
                env={**os.environ, **new_run.environment, **site},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_START_SECONDS,
                check=False,
            )
        except OSError as error:
            raise RunRefusedError(f"{error.filename}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise RunRefusedError(f"not started within {_START_SECONDS:g} s") from error
        if done.returncode:
            raise RunRefusedError(done.stderr.strip().removeprefix("batchjob: ") or "not started")
        return history.job(done.stdout.split()[0], str(self.data))

    def stop(self, run: Run, grace_seconds: float) -> Run:
        return self._end_run(run, grace_seconds)

    def cancel(self, run: Run) -> Run:
        if run.state != JobState.PENDING:
            raise RunRefusedError(f"run {run.jobid} is not waiting: {run.status}")
        return self._end_run(run, 0.0)

    def _end_run(self, run: Run, grace_seconds: float) -> Run:
        try:
            return stop.end_run(self.data, run, grace_seconds, _MAX_WAIT_SECONDS)
        except SettingsError as error:
            raise RunRefusedError(str(error)) from error

    def delete(self, run: Run) -> None:
        if run.state.is_live:
            raise RunRefusedError(f"run {run.jobid} has not ended: {run.status}")
        try:
            stop.delete_run(self.data, run)
        except OSError as error:
            raise RunRefusedError(f"{error.filename}: {error.strerror}") from error


def _arguments(new_run: NewRun, data: Path, asked_by: tuple[str, ...]) -> list[str]:
    options = {
        "--name": new_run.name,
        "--cpus": new_run.cpus,
        "--cpu-list": new_run.cpu_list,
        "--memory": new_run.memory_bytes,
        "--gpus": new_run.gpus,
        "--io": new_run.io_bytes_per_second,
        "--time-limit": new_run.time_limit_seconds and f"{new_run.time_limit_seconds}s",
    }
    given = [f"{flag}={value}" for flag, value in options.items() if value]
    if new_run.start_time is not None:
        given.append(f"--at=@{new_run.start_time}")
    first = ("run", "--server=", "--detach", "--strict", f"--data={data}")
    return [*first, *asked_by, *given, "--", *new_run.command]


class RunLog:
    """Logs the start, the end and the state of each run.

    It remembers the runs that live, and those that have just ended.
    """

    def __init__(self, data: Path, clock: Callable[[], float] = time.time) -> None:
        """What happened before is not logged."""
        self._data = data
        self._clock = clock
        self._looked_at = clock()
        self._began = math.floor(1000 * self._looked_at) / 1000  # records have milliseconds
        self._known: dict[str, Run] | None = None

    def look(self) -> None:
        """Log what has changed since the last look; raises OSError."""
        since, self._looked_at = self._looked_at - _OVERLAP_SECONDS, self._clock()
        if self._known is None:
            before = [each for each in history.all_runs(self._data) if not self._is_new(each)]
            self._known = {run.jobid: run for run in before if run.state.is_live}
        changed = [run for run in history.changed_runs(self._data, since) if self._is_new(run)]
        ids = {run.jobid for run in changed}
        # A run that was killed has changed nothing.
        others = history.runs_with_ids(self._data, self._known.keys() - ids)
        own = [run for run in (*changed, *others) if run.by == "run"]
        for run in sorted(own, key=lambda each: each.start_time or each.submit_time):
            self._log_change(run, self._known.get(run.jobid))
        for jobid in self._known.keys() - {run.jobid for run in own}:
            if self._known[jobid].state.is_live:
                _log_deleted(self._known[jobid])
        self._known = {run.jobid: run for run in own if run.state.is_live or run.jobid in ids}

    def _is_new(self, run: Run) -> bool:
        return max(run.submit_time, run.start_time or 0.0, run.end_time or 0.0) >= self._began

    def _log_change(self, run: Run, known: Run | None) -> None:
        before = known.state if known else None
        if run.state is before:
            return
        if run.state is JobState.PENDING:
            _log_waiting(run)
        if run.start_time is not None and before in (None, JobState.PENDING):
            _log_started(run)
        if not run.state.is_live:
            _log_ended(run)


def _log_waiting(run: Run) -> None:
    log.info("%s waits: %s", _run_label(run), run.reason)


def _log_started(run: Run) -> None:
    requested = f" for {run.requested_by}" if run.requested_by else ""
    log.info("%s started by %s%s", _run_label(run), run.user, requested)


def _log_ended(run: Run) -> None:
    words = [run.status]
    if run.exit_signal:
        words.append(f"signal {run.exit_signal}")
    elif run.exit_code is not None:
        words.append(f"exit status {run.exit_code}")
    if run.duration_seconds is not None:
        words.append(f"{run.duration_seconds:.3f} s")
    if run.user_cpu_seconds is not None and run.system_cpu_seconds is not None:
        words.append(f"CPU {run.user_cpu_seconds:.3f} s user {run.system_cpu_seconds:.3f} s system")
    if run.peak_memory_bytes is not None:
        words.append(f"peak memory {size(run.peak_memory_bytes)}")
    log.info("%s ended: %s", _run_label(run), ", ".join(words))


def _log_deleted(run: Run) -> None:
    """Log that the run has ended, and that nothing is left of it that tells how."""
    log.info("%s has ended, and was deleted", _run_label(run))


def _run_label(run: Run) -> str:
    return f"run {run.jobid} ({run.name})" if run.name else f"run {run.jobid}"
