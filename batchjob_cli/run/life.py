"""Log lines about runs: waiting, started, ended."""

import logging

from batchjob.local_runs.record import Run
from batchjob.runtime.formatting import size
from batchjob.runtime.log import formatter
from batchjob.runtime.logins import expand_home
from batchjob.runtime.settings import SettingsError
from batchjob_cli.run.defaults import RunLogOptions

log = logging.getLogger("batchjob.run")


def set_up(options: RunLogOptions) -> None:
    """Log to the configured file, if any; raises SettingsError."""
    if not options.file:
        return
    try:
        handler = logging.FileHandler(expand_home(options.file), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"log.file: {error.filename}: {error.strerror}") from error
    handler.setFormatter(formatter(options.format))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def log_waiting(run: Run) -> None:
    """Log that the run waits to start."""
    log.info("%s waits: %s", _run_label(run), run.reason)


def log_started(run: Run) -> None:
    """Log that the command has been started."""
    log.info("%s started by %s", _run_label(run), run.user)


def log_ended(run: Run) -> None:
    """Log that the run has ended, or could not start."""
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


def _run_label(run: Run) -> str:
    return f"run {run.jobid} ({run.name})" if run.name else f"run {run.jobid}"
