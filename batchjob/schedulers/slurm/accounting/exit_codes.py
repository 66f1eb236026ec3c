"""Exit codes as Slurm's programs print them.

Seen with 22.05.8 and 26.05.3, and Slurm's list of changes for 25.11: up to 25.05, ExitCode of sacct
is 128 less than an exit status from 128 on, so a program that returned 255 looks like a command
that was not found (127). DerivedExitCode of sacct, slurmctld (squeue, slurmrestd) and sacct since
25.11 have the status itself.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from batchjob.schedulers.fields import integer
from batchjob.schedulers.records import JobRecord, StepRecord
from batchjob.schedulers.slurm.json_format import parse_count
from batchjob.schedulers.states import JobState

_TAKEN_OFF = 128
_FIRST_EXACT_RELEASE = (25, 11)
_RELEASE = re.compile(r"\b(\d+)\.(\d+)")


ExitStatus = tuple[int | None, int | None, int | None]
"""Exit code and signal of a job or step; where the code is not known, the third, or 128 more."""


def parse_release(version: str) -> tuple[int, int] | None:
    """The release of a command's `--version`, such as (25, 11) of `slurm 25.11.2`."""
    release = _RELEASE.search(version)
    return (int(release[1]), int(release[2])) if release else None


def prints_exit_statuses(version: str) -> bool:
    """Whether a sacct prints them as they are, by its --version."""
    release = parse_release(version)
    return release is not None and release >= _FIRST_EXACT_RELEASE


@lru_cache(maxsize=1000)  # the most common value is 0:0
def parse_exit_pair(text: str) -> tuple[int, int]:
    """Exit code and signal of `3:0`."""
    code, _, signal = text.partition(":")
    return integer(code), integer(signal or "0")


def sacct_exit(pair: tuple[int, int] | None, state: JobState, *, exact: bool) -> ExitStatus:
    if pair is None:
        return None, None, None
    code, signal = pair
    # A step that could not be launched has FAILED with 0:0 as well as one that returned 128.
    if exact or signal or code >= _TAKEN_OFF or (code == 0 and state is not JobState.FAILED):
        return code, signal, None
    return None, signal, code


def json_exit(value: Any) -> tuple[int | None, int | None]:
    """Code and signal of exit_code or derived_exit_code, after unwrap_numbers().

    Up to v0.0.39 every normal end is SUCCESS with return code 0, which therefore is ignored.
    """
    if not isinstance(value, dict):
        return None, None
    signal = value.get("signal")
    signal_number = None
    if isinstance(signal, dict):
        signal_number = parse_count(signal.get("id", signal.get("signal_id")))
    code = parse_count(value.get("return_code"))
    if isinstance(value.get("status"), str) and not code:
        code = None
    if signal_number and code is None:
        code = 0
    return code, signal_number if signal_number is not None or code is None else 0


def wait_status_code(text: str) -> int | None:
    """The exit code of a wait status, `32512`, as slurmctld has it; None if a signal ended it."""
    status = integer(text)
    return None if status & 0x7F else status >> 8 & 0xFF


def with_known_exit_codes(job: JobRecord, codes: Mapping[tuple[str, int], int]) -> JobRecord:
    """An ended job and its steps with the exit codes that slurmctld has, by id and submit time."""
    code, reduced = job.exit_code, job.exit_code_or_128_more
    if code is None and job.end_time is not None:
        known = codes.get((job.jobid, job.submit_time))
        code = known if reduced is None or known in _candidates(reduced) else None
    if any(step.exit_code_or_128_more is not None for step in job.steps):
        # Steps that have not ended, also those that outlive a part of a job, may have any code.
        is_whole = job.state is not JobState.RESIZED and None not in (s.end_time for s in job.steps)
        derived = job.derived_exit_code if is_whole else None
        job = job._replace(steps=tuple(_steps_with_known_codes(job, code, derived)))
    return job if code == job.exit_code else job._replace(exit_code=code)


def _steps_with_known_codes(
    job: JobRecord, job_code: int | None, derived: int | None
) -> list[StepRecord]:
    """The code of the batch step is the job's; DerivedExitCode is the highest of the others.

    It lacks steps that ended after the job had.
    """
    ended = job.end_time or math.inf
    counted = [s for s in job.steps if s.step != "batch" and (s.end_time or 0.0) <= ended]
    open_codes = [step.exit_code_or_128_more for step in counted]
    known = []
    for step in job.steps:
        reduced = step.exit_code_or_128_more
        if step.exit_code is None and reduced is not None:
            code = job_code if step.step == "batch" else derived if step in counted else None
            is_certain = step.step == "batch" or code == reduced or open_codes.count(reduced) == 1
            if is_certain and code in _candidates(reduced):
                step = step._replace(exit_code=code)
        known.append(step)
    return known


def _candidates(code_or_128_more: int) -> tuple[int, int]:
    return code_or_128_more, code_or_128_more + _TAKEN_OFF
