"""PBS and LSF in memory: jobs with their whole lives, and what qstat and bjobs print of them.

Both show only the newest run of a job, and forget a job some time after its end.
"""

import heapq
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchjob.runtime.subprocesses import CommandFailedError


@dataclass(slots=True)
class QueuedJob:
    """A job; every run except the last is requeued. Without runs, it is deleted while it waits."""

    jobid: str
    submit: int
    runs: list[tuple[int, int]]  # start and end
    end: int

    def progress(self, now: int) -> tuple[int, bool]:
        """How many runs have started by a time, and whether one is running."""
        started_runs = [run for run in self.runs if run[0] <= now]
        return len(started_runs), bool(started_runs) and now < started_runs[-1][1]


class SimulatedQueue:
    """Jobs that a scheduler remembers."""

    def __init__(self, format_job: Callable[[QueuedJob, int], Any], history_seconds: int) -> None:
        self.now = 0
        self.down = False
        self.answered: list[int] = []
        self._format_job = format_job
        self._history = history_seconds
        self._future_jobs: list[tuple[int, int, QueuedJob]] = []
        self._known_jobs: dict[int, QueuedJob] = {}

    def add(self, job: QueuedJob) -> None:
        heapq.heappush(self._future_jobs, (job.submit, id(job), job))

    def run(
        self, options: object, argv: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> bytes:
        """Stands for `batchjob.runtime.subprocesses.run`."""
        del options, variables
        if self.down:
            text = f"{argv[0]}: exit status 1: Connection refused"
            raise CommandFailedError(text, b"Connection refused")
        while self._future_jobs and self._future_jobs[0][0] <= self.now:
            job = heapq.heappop(self._future_jobs)[2]
            self._known_jobs[id(job)] = job
        expired = [
            key for key, job in self._known_jobs.items() if job.end + self._history <= self.now
        ]
        for key in expired:
            del self._known_jobs[key]
        self.answered.append(self.now)
        return self._format(self._known_jobs.values())

    def _format(self, jobs: Iterable[QueuedJob]) -> bytes:
        elements = [self._format_job(job, self.now) for job in jobs]
        if self._format_job is qstat_job:
            return json.dumps({"timestamp": self.now, "Jobs": dict(elements)}).encode()
        return json.dumps({"COMMAND": "bjobs", "JOBS": len(elements), "RECORDS": elements}).encode()


def qstat_job(job: QueuedJob, now: int) -> tuple[str, dict[str, Any]]:
    """An element of `Jobs` of `qstat -x -f -F json`."""
    started_runs, is_running = job.progress(now)
    ended = now >= job.end
    start, end = job.runs[started_runs - 1] if started_runs else (0, 0)
    attributes = {
        "Job_Name": "train", "Job_Owner": "alice@login", "queue": "workq",
        "job_state": "F" if ended else "R" if is_running else "Q", "ctime": _pbs_time(job.submit),
        "mtime": _pbs_time(job.end if ended else start if is_running else end or job.submit),
        "Resource_List": {"ncpus": 4, "nodect": 1}, "project": "_pbs_project_default",
        "run_count": started_runs,
    }  # fmt: skip
    if is_running or (ended and started_runs):
        attributes |= {"stime": _pbs_time(start), "exec_host": "n1/0*4"}
    if ended:
        attributes |= {"history_timestamp": job.end, "Exit_status": 0 if started_runs else 271}
    return job.jobid, attributes


def bjobs_job(job: QueuedJob, now: int) -> dict[str, str]:
    """An element of RECORDS of `bjobs -json`."""
    started_runs, is_running = job.progress(now)
    ended = now >= job.end
    state = ("DONE" if started_runs else "EXIT") if ended else "RUN" if is_running else "PEND"
    started = is_running or (ended and started_runs)
    return {
        "JOBID": job.jobid, "JOBINDEX": "0", "STAT": state, "USER": "alice", "QUEUE": "normal",
        "JOB_NAME": "train", "PROJ_NAME": "physics", "SUBMIT_TIME": _lsf_time(job.submit),
        "START_TIME": _lsf_time(job.runs[started_runs - 1][0]) if started else "",
        "FINISH_TIME": _lsf_time(job.end) if ended else "", "ALLOC_SLOT": "4*n1" if started else "",
        "EXIT_REASON": "TERM_OWNER: job killed by owner" if state == "EXIT" else "",
    }  # fmt: skip


def _pbs_time(seconds: int) -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(seconds))


def _lsf_time(seconds: int) -> str:
    return time.strftime("%b %d %H:%M:%S %Y", time.gmtime(seconds))
