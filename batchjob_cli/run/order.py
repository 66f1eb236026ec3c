"""What `batchjob run` was told to do, and the record it begins with."""

import grp
import math
import os
import shlex
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from batchjob.login import login
from batchjob.runs import Run, this_process
from batchjob.states import JobState
from batchjob_cli.run.limits import Limits


class Order(NamedTuple):
    """A run that is to be."""

    command: tuple[str, ...]
    data: Path
    limits: Limits
    name: str = ""
    time_limit: float | None = None  # seconds
    grace: float = 10.0  # seconds from SIGTERM to SIGKILL
    start_at: float | None = None  # epoch seconds
    cgroup: str = "auto"  # auto, always, never
    best_effort: bool = False  # go on without limits that cannot be applied
    detach: bool = False
    quiet: bool = False
    keep_output: bool = True
    log_bytes: int = 0  # for each stream, compressed


def first_record(order: Order) -> Run:
    """The record of a run that waits or is about to start; raises OSError."""
    now = time.time()
    waits = order.start_at is not None
    return Run(
        jobid=str(uuid.uuid4()),
        node=os.uname().nodename,
        user=login(),
        uid=os.geteuid(),
        submit_time=int(now),
        start_time=None if waits else int(now),
        state=JobState.PENDING if waits else JobState.RUNNING,
        supervisor=this_process(),
        name=order.name,
        group=_group(),
        submit_line=shlex.join(order.command),
        work_dir=_work_dir(),
        allocated_cpus=math.ceil(order.limits.cpus) if order.limits.cpus else None,
        allocated_memory_bytes=order.limits.memory_bytes,
        time_limit_seconds=None if order.time_limit is None else math.ceil(order.time_limit),
    )


def _group() -> str:
    try:
        return grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return ""


def _work_dir() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # removed
        return ""
