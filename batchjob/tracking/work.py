"""A piece of work inside a program: its record, begun and ended."""

import json
import logging
import os
import shlex
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchjob.local_runs.directory import RUNS, NoDataDirectory, data_directory, prepare
from batchjob.local_runs.record import Run, SupervisorProcess, now, this_process, write
from batchjob.local_runs.retention import RunRetention, sweep_daily
from batchjob.runtime.formatting import size
from batchjob.runtime.logins import login
from batchjob.schedulers.states import JobState
from batchjob.tracking.outcome import WorkOutcome, returned
from batchjob.tracking.process_usage import OwnUsage

log = logging.getLogger("batchjob.track")

_USAGE = OwnUsage()  # per process, because CPU time and memory are counted per process
_LONGEST = 10_000  # maximum characters of an error message and of the parameters
_SHORT = 200  # maximum characters of one value, if the parameters are too long together

_STATES = {
    "success": JobState.COMPLETED,
    "failed": JobState.FAILED,
    "error": JobState.FAILED,
    "timeout": JobState.TIMEOUT,
    "cancelled": JobState.CANCELLED,
    "retry": JobState.REQUEUED,
}
_LEVELS = {
    "success": logging.INFO, "cancelled": logging.INFO, "retry": logging.WARNING,
    "timeout": logging.WARNING, "failed": logging.ERROR, "error": logging.ERROR,
}  # fmt: skip


class Work:
    """A piece of work that is being done; `jobid` is its id in all lists."""

    def __init__(self, first: Run, data: str) -> None:
        self.run = first
        self._data = _directory(data, first)
        self._said: WorkOutcome | None = None
        self._result_type = ""
        self._begun = time.monotonic()
        _record(first, self._data)
        log.info("%s: started", _called(first), extra={"jobid": first.jobid})
        self._piece = _USAGE.begin()

    @property
    def jobid(self) -> str:
        """The id of its record, a UUID."""
        return self.run.jobid

    def fail(self, error: str = "", return_code: int | None = None) -> None:
        """Say that the work failed, though no exception tells."""
        self._said = WorkOutcome("failed", error, return_code)

    def time_out(self, error: str = "") -> None:
        """Say that the work took too long."""
        self._said = WorkOutcome("timeout", error)

    def set_result(self, result: object) -> None:
        """Say that the work has a result, where no function returns it; its type is recorded."""
        self._result_type = returned(result).result_type

    def end(self, outcome: WorkOutcome, own_cpu: tuple[float, float] | None = None) -> Run:
        """Put the end on record and into the log. What fail() or time_out() said comes first."""
        if self._said is not None and outcome.status == "success":
            outcome = self._said
        outcome = outcome._replace(result_type=outcome.result_type or self._result_type)
        used = _USAGE.end(self._piece, own_cpu)
        run = self.run._replace(
            user_cpu_seconds=_rounded(used.user_cpu_seconds),
            system_cpu_seconds=_rounded(used.system_cpu_seconds),
            peak_memory_bytes=used.peak_memory_bytes,
        )
        self.run = put_on_record(run, outcome, self._data, time.monotonic() - self._begun)
        return self.run

    def leave(self) -> None:
        """Follow it no longer: its end is on record already."""
        _USAGE.end(self._piece)


def put_on_record(run: Run, outcome: WorkOutcome, data: Path | None, wall_seconds: float) -> Run:
    """Put the end of a piece of work on record, if there is a data directory, and into the log."""
    code = outcome.return_code
    ended = run._replace(
        state=_STATES[outcome.status],
        state_word=outcome.status,
        end_time=max(now(), run.start_time or 0),
        wall_seconds=round(wall_seconds, 6),
        exit_code=code if code is None or code >= 0 else None,
        exit_signal=-code if code is not None and code < 0 else None,
        error=outcome.error[:_LONGEST],
        result_type=outcome.result_type[:_SHORT],
    )
    _record(ended, data)
    _say(ended)
    if data is not None:
        sweep_daily(data, RunRetention())
    return ended


def _directory(given: str, run: Run) -> Path | None:
    try:
        return data_directory(given)
    except NoDataDirectory as error:
        _not_recorded(run, error.filename, error)
        return None


def _record(run: Run, data: Path | None) -> None:
    if data is None:
        return
    try:
        write(prepare(data, RUNS), run, durable=False)
    except OSError as error:
        _not_recorded(run, error.filename or data, error)


def _not_recorded(run: Run, where: object, error: OSError) -> None:
    log.warning("%s is not recorded: %s: %s", run.name or "work", where, error.strerror)


def first_record(name: str, tool: str, parameters: Mapping[str, Any] | None, by: str) -> Run:
    """The record of a piece of work that begins now in this process."""
    begun = now()
    return Run(
        jobid=str(uuid.uuid4()),
        node=os.uname().nodename,
        user=login(),
        uid=os.geteuid(),
        submit_time=begun,
        start_time=begun,
        state=JobState.RUNNING,
        supervisor=_watcher(),
        name=name,
        submit_line=shlex.join(sys.orig_argv)[:_LONGEST],
        work_dir=_work_dir(),
        by=by,
        tool=tool,
        parameters=as_text(parameters or {}),
    )


def as_text(parameters: Mapping[str, Any]) -> str:
    """JSON of parameters; what JSON has no form for as Python writes it. "" for none."""
    if not parameters:
        return ""
    try:
        text = json.dumps(dict(parameters), default=repr, ensure_ascii=False)
    except (TypeError, ValueError):  # keys that are not text, or circular references
        text = json.dumps({str(key): repr(value) for key, value in parameters.items()})
    if len(text) <= _LONGEST:
        return text
    short = {str(key): repr(value)[:_SHORT] for key, value in parameters.items()}
    text = json.dumps(short, ensure_ascii=False)
    return text if len(text) <= _LONGEST else json.dumps({"parameters": f"{len(parameters)}"})


def _say(run: Run) -> None:
    message = f"{_called(run)}: {run.status} after {run.wall_seconds or 0.0:.3f} s"
    if run.user_cpu_seconds is not None and run.system_cpu_seconds is not None:
        message += f", CPU {run.user_cpu_seconds:.3f} s user {run.system_cpu_seconds:.3f} s system"
    if run.peak_memory_bytes is not None:
        message += f", peak memory {size(run.peak_memory_bytes)}"
    if run.error:
        message += f": {run.error}"
    log.log(_LEVELS[run.state_word], "%s", message, extra={"jobid": run.jobid})


def _called(run: Run) -> str:
    return run.name or run.record_id or run.jobid


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _watcher() -> SupervisorProcess:
    try:
        return this_process()
    except OSError:  # without /proc nobody can tell whether this process is alive
        return SupervisorProcess(os.getpid(), 0, "")


def _work_dir() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
