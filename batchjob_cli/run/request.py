"""The specification of a run from the command line, and the run's first record."""

import grp
import os
import shlex
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs.record import Run, current_process, now
from batchjob.runtime.cpu_lists import format_cpu_list
from batchjob.runtime.logins import login
from batchjob.schedulers.states import JobState
from batchjob_cli.run.limits import RunLimits


class RunSpecification(NamedTuple):
    """A run to be started."""

    command: tuple[str, ...]
    data: Path
    limits: RunLimits
    name: str = ""
    time_limit: float | None = None  # seconds
    grace: float = 10.0  # seconds from SIGTERM to SIGKILL
    start_at: float | None = None  # epoch seconds
    cgroup: str = "auto"  # auto, always, never
    best_effort: bool = False  # start the run even if a limit cannot be applied
    detach: bool = False
    quiet: bool = False
    keep_output: bool = True
    log_bytes: int = 0  # maximum per stream, compressed
    cpus: frozenset[int] = frozenset()  # CPUs to bind it to; empty: none
    max_runs: int = 0  # maximum runs of a user at once; 0: no limit


def first_record(spec: RunSpecification, jobid: str, reason: str) -> Run:
    """The record of a run that waits, or is about to start; raises OSError."""
    submitted = now()
    waits = bool(reason)
    return Run(
        jobid=jobid,
        node=os.uname().nodename,
        user=login(),
        uid=os.geteuid(),
        submit_time=submitted,
        start_time=None if waits else submitted,
        state=JobState.PENDING if waits else JobState.RUNNING,
        supervisor=current_process(),
        name=spec.name,
        group=_group(),
        submit_line=shlex.join(spec.command),
        work_dir=_work_dir(),
        time_limit_seconds=spec.time_limit,
        cpu_list=format_cpu_list(spec.cpus),
        reason=reason,
    )


def _group() -> str:
    try:
        return grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return ""


def _work_dir() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # the directory has been removed
        return ""
