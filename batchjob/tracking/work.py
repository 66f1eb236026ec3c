"""A piece of work inside a program, and its record."""

import json
import logging
import os
import shlex
import sys
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.local_runs.directory import RUNS, NoDataDirectory, create_directory, data_directory
from batchjob.local_runs.record import Run, SupervisorProcess, current_process, new_run, now, write
from batchjob.local_runs.retention import sweep_daily
from batchjob.runtime.formatting import size
from batchjob.schedulers.states import JobState
from batchjob.tracking.process_usage import ProcessUsage

log = logging.getLogger("batchjob.track")

_USAGE = ProcessUsage()  # per process, because CPU time and memory are counted per process
_MAX_TEXT_CHARACTERS = 10_000  # maximum characters of an error message and of the parameters
# Maximum characters of one value, if the parameters are too long together.
_MAX_VALUE_CHARACTERS = 200

_ENDS = {
    "success": (JobState.COMPLETED, logging.INFO),
    "failed": (JobState.FAILED, logging.ERROR),
    "error": (JobState.FAILED, logging.ERROR),
    "timeout": (JobState.TIMEOUT, logging.WARNING),
    "cancelled": (JobState.CANCELLED, logging.INFO),
    "retry": (JobState.REQUEUED, logging.WARNING),
}
"""The state, and the severity of the message, by status."""


class WorkOutcome(NamedTuple):
    """How a piece of work ended: `success`, `failed`, `timeout`, `error`, `cancelled`, `retry`."""

    status: str
    error: str = ""
    return_code: int | None = None  # negative for a signal, as in subprocess
    result_type: str = ""  # type of the return value


def outcome_of_result(result: object) -> WorkOutcome:
    """The outcome of work that returned this; only the type is recorded."""
    return WorkOutcome("success", result_type="" if result is None else type(result).__qualname__)


def outcome_of_error(error: BaseException | None) -> WorkOutcome:
    """The outcome of work that raised this exception; None: it raised none."""
    if error is None:
        return WorkOutcome("success")
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return WorkOutcome("failed" if code else "success", text if code else "", code)
    if isinstance(error, _imported_exceptions("subprocess", "CalledProcessError")):
        return WorkOutcome("failed", text, getattr(error, "returncode", None))
    if isinstance(error, (TimeoutError, *_imported_exceptions("subprocess", "TimeoutExpired"))):
        return WorkOutcome("timeout", text)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return WorkOutcome("cancelled", text)
    cancelled = isinstance(error, _imported_exceptions("asyncio", "CancelledError"))
    return WorkOutcome("cancelled" if cancelled else "error", text)


def _imported_exceptions(module: str, name: str) -> tuple[type[BaseException], ...]:
    """The class, if its module was imported; otherwise it cannot have been raised."""
    exception = getattr(sys.modules.get(module), name, None)
    return () if exception is None else (exception,)


class Work:
    """A piece of work that is running; `jobid` is its id in all lists."""

    def __init__(self, run: Run, data: str) -> None:
        self.run = run
        self._data = _find_directory(data, run)
        self._declared_outcome: WorkOutcome | None = None
        self._result_type = ""
        self._started_at = time.monotonic()
        _write_record(run, self._data)
        log.info("%s: started", _display_name(run), extra={"jobid": run.jobid})
        self._measurement = _USAGE.begin()

    @property
    def jobid(self) -> str:
        """The id of its record, a UUID."""
        return self.run.jobid

    def fail(self, error: str = "", return_code: int | None = None) -> None:
        """Declare that the work failed, where no exception shows it."""
        self._declared_outcome = WorkOutcome("failed", error, return_code)

    def time_out(self, error: str = "") -> None:
        self._declared_outcome = WorkOutcome("timeout", error)

    def set_result(self, result: object) -> None:
        """Declare a result that no function returns; only its type is recorded."""
        self._result_type = outcome_of_result(result).result_type

    def end(self, outcome: WorkOutcome, own_cpu: tuple[float, float] | None = None) -> Run:
        """Record and log the end; fail() and time_out() take precedence over a success."""
        if self._declared_outcome is not None and outcome.status == "success":
            outcome = self._declared_outcome
        outcome = outcome._replace(result_type=outcome.result_type or self._result_type)
        user, system, peak_bytes = _USAGE.end(self._measurement, own_cpu)
        run = self.run._replace(
            user_cpu_seconds=_round_seconds(user),
            system_cpu_seconds=_round_seconds(system),
            peak_memory_bytes=peak_bytes,
        )
        self.run = record_end(run, outcome, self._data, time.monotonic() - self._started_at)
        return self.run

    def stop_tracking(self) -> None:
        """Stop measuring; another process has already recorded the end."""
        _USAGE.end(self._measurement)


def record_end(run: Run, outcome: WorkOutcome, data: Path | None, wall_seconds: float) -> Run:
    """Record the end of a piece of work, if there is a data directory, and log it."""
    code = outcome.return_code
    ended = run._replace(
        state=_ENDS[outcome.status][0],
        state_word=outcome.status,
        end_time=max(now(), run.start_time or 0),
        wall_seconds=round(wall_seconds, 6),
        exit_code=code if code is None or code >= 0 else None,
        exit_signal=-code if code is not None and code < 0 else None,
        error=outcome.error[:_MAX_TEXT_CHARACTERS],
        result_type=outcome.result_type[:_MAX_VALUE_CHARACTERS],
    )
    _write_record(ended, data)
    _log_end(ended)
    if data is not None:
        sweep_daily(data)
    return ended


def _find_directory(given: str, run: Run) -> Path | None:
    try:
        return data_directory(given)
    except NoDataDirectory as error:
        _warn_not_recorded(run, error.filename, error)
        return None


def _write_record(run: Run, data: Path | None) -> None:
    if data is None:
        return
    try:
        write(create_directory(data, RUNS), run, durable=False)
    except OSError as error:
        _warn_not_recorded(run, error.filename or data, error)


def _warn_not_recorded(run: Run, where: object, error: OSError) -> None:
    log.warning("%s is not recorded: %s: %s", run.name or "work", where, error.strerror)


def initial_record(name: str, tool: str, parameters: Mapping[str, Any] | None, by: str) -> Run:
    """The record of a piece of work that begins now in this process."""
    line = shlex.join(sys.orig_argv)[:_MAX_TEXT_CHARACTERS]
    run = new_run(str(uuid.uuid4()), JobState.RUNNING, _supervisor(), name=name, by=by, tool=tool)
    return run._replace(submit_line=line, parameters=parameters_json(parameters or {}))


def parameters_json(parameters: Mapping[str, Any]) -> str:
    """The parameters as JSON, with repr() of values that JSON lacks; "" if there are none."""
    if not parameters:
        return ""
    try:
        text = json.dumps(dict(parameters), default=repr, ensure_ascii=False)
    except (TypeError, ValueError):  # keys that are not text, or circular references
        text = json.dumps({str(key): repr(value) for key, value in parameters.items()})
    if len(text) <= _MAX_TEXT_CHARACTERS:
        return text
    short = {str(key): repr(value)[:_MAX_VALUE_CHARACTERS] for key, value in parameters.items()}
    text = json.dumps(short, ensure_ascii=False)
    return (
        text
        if len(text) <= _MAX_TEXT_CHARACTERS
        else json.dumps({"parameters": f"{len(parameters)}"})
    )


def _log_end(run: Run) -> None:
    message = f"{_display_name(run)}: {run.status} after {run.wall_seconds or 0.0:.3f} s"
    if run.user_cpu_seconds is not None and run.system_cpu_seconds is not None:
        message += f", CPU {run.user_cpu_seconds:.3f} s user {run.system_cpu_seconds:.3f} s system"
    if run.peak_memory_bytes is not None:
        message += f", peak memory {size(run.peak_memory_bytes)}"
    if run.error:
        message += f": {run.error}"
    log.log(_ENDS[run.state_word][1], "%s", message, extra={"jobid": run.jobid})


def _display_name(run: Run) -> str:
    return run.name or run.record_id or run.jobid


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _supervisor() -> SupervisorProcess:
    try:
        return current_process()
    except OSError:  # without /proc nobody can tell whether this process is alive
        return SupervisorProcess(os.getpid(), 0, "")
