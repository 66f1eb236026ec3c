"""PBS and LSF in memory: jobs with their whole lives, and what qstat and bjobs print of them.

Both show a job's newest run alone, and forget a job some time after its end.
"""

import heapq
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchjob.runtime.subprocesses import CommandFailedError, CompletedCommand


@dataclass(slots=True)
class QueuedJob:
    """A job; all its runs but the last are requeued. Without runs it is deleted while it waits."""

    jobid: str
    submit: int
    runs: list[tuple[int, int]]  # start and end
    end: int

    def at(self, now: int) -> tuple[int, bool]:
        """How many runs have begun by then, and whether one is under way."""
        begun = [run for run in self.runs if run[0] <= now]
        return len(begun), bool(begun) and now < begun[-1][1]


class SimulatedQueue:
    """Jobs that a scheduler remembers."""

    def __init__(self, show: Callable[[QueuedJob, int], Any], history_seconds: int) -> None:
        self.now = 0
        self.down = False
        self.answered: list[int] = []
        self._show = show
        self._history = history_seconds
        self._to_come: list[tuple[int, int, QueuedJob]] = []
        self._there: dict[int, QueuedJob] = {}

    def add(self, job: QueuedJob) -> None:
        heapq.heappush(self._to_come, (job.submit, id(job), job))

    def run(
        self, options: object, argv: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> CompletedCommand:
        """Stands for `batchjob.runtime.subprocesses.run`."""
        del options, variables
        if self.down:
            failed = CompletedCommand(b"", b"Connection refused", 0.0)
            raise CommandFailedError(f"{argv[0]}: exit status 1: Connection refused", 1, failed)
        while self._to_come and self._to_come[0][0] <= self.now:
            job = heapq.heappop(self._to_come)[2]
            self._there[id(job)] = job
        forgotten = [key for key, job in self._there.items() if job.end + self._history <= self.now]
        for key in forgotten:
            del self._there[key]
        self.answered.append(self.now)
        return CompletedCommand(self._printed(self._there.values()), b"", 0.0)

    def _printed(self, jobs: Iterable[QueuedJob]) -> bytes:
        shown = [self._show(job, self.now) for job in jobs]
        if self._show is qstat_job:
            return json.dumps({"timestamp": self.now, "Jobs": dict(shown)}).encode()
        return json.dumps({"COMMAND": "bjobs", "JOBS": len(shown), "RECORDS": shown}).encode()


def qstat_job(job: QueuedJob, now: int) -> tuple[str, dict[str, Any]]:
    """An element of `Jobs` of `qstat -x -f -F json`."""
    begun, runs = job.at(now)
    over = now >= job.end
    start, end = job.runs[begun - 1] if begun else (0, 0)
    shown = {
        "Job_Name": "train", "Job_Owner": "alice@login", "queue": "workq",
        "job_state": "F" if over else "R" if runs else "Q", "ctime": _pbs_time(job.submit),
        "mtime": _pbs_time(job.end if over else start if runs else end or job.submit),
        "Resource_List": {"ncpus": 4, "nodect": 1}, "project": "_pbs_project_default",
        "run_count": begun,
    }  # fmt: skip
    if runs or (over and begun):
        shown |= {"stime": _pbs_time(start), "exec_host": "n1/0*4"}
    if over:
        shown |= {"history_timestamp": job.end, "Exit_status": 0 if begun else 271}
    return job.jobid, shown


def bjobs_job(job: QueuedJob, now: int) -> dict[str, str]:
    """An element of RECORDS of `bjobs -json`."""
    begun, runs = job.at(now)
    over = now >= job.end
    state = ("DONE" if begun else "EXIT") if over else "RUN" if runs else "PEND"
    started = runs or (over and begun)
    return {
        "JOBID": job.jobid, "JOBINDEX": "0", "STAT": state, "USER": "alice", "QUEUE": "normal",
        "JOB_NAME": "train", "PROJ_NAME": "physics", "SUBMIT_TIME": _lsf_time(job.submit),
        "START_TIME": _lsf_time(job.runs[begun - 1][0]) if started else "",
        "FINISH_TIME": _lsf_time(job.end) if over else "", "ALLOC_SLOT": "4*n1" if started else "",
        "EXIT_REASON": "TERM_OWNER: job killed by owner" if state == "EXIT" else "",
    }  # fmt: skip


def _pbs_time(at: int) -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(at))


def _lsf_time(at: int) -> str:
    return time.strftime("%b %d %H:%M:%S %Y", time.gmtime(at))
