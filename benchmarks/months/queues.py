"""A month of PBS by qstat, and of LSF by bjobs, which tell what the scheduler remembers.

What happened while nobody asked, and was forgotten before somebody did, cannot be had: the model
goes by the moments at which the scheduler answered. Everything else must be there.
"""

import contextlib
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

from batchjob.runtime import subprocesses
from batchjob.schedulers.lsf.accounting import bjobs
from batchjob.schedulers.pbs import qstat_jobs
from batchjob.schedulers.pbs.accounting import qstat
from benchmarks.months.site import (
    BEGIN,
    DAY,
    HOUR,
    Answers,
    Check,
    Clock,
    Differences,
    Found,
    Key,
    compared,
    is_,
    outages,
    simulate,
)
from tests.simulated.queues import QueuedJob, SimulatedQueue, bjobs_job, qstat_job

HISTORY = {"qstat": 3 * HOUR, "bjobs": HOUR}  # seconds for which the scheduler remembers ended jobs
LARGEST_ID = 30_000


class QueueMonth:
    """Jobs that wait, run, are requeued, end and are forgotten; ids that are used again."""

    def __init__(self, kind: str, total: int, days: int, seed: int) -> None:
        self._kind = kind
        self._chance = random.Random(seed)
        self.outages = outages(self._chance, days)
        self.queue = SimulatedQueue(qstat_job if kind == "qstat" else bjobs_job, HISTORY[kind])
        times = sorted(BEGIN + self._chance.randrange(days * DAY) for _ in range(total))
        self.jobs = [self._job(number, submit) for number, submit in enumerate(times)]
        for job in self.jobs:
            self.queue.add(job)

    def _job(self, number: int, submit: int) -> QueuedJob:
        chance = self._chance
        jobid = f"{number % LARGEST_ID + 1}" + (".pbs01" if self._kind == "qstat" else "")
        runs: list[tuple[int, int]] = []
        at = submit
        if chance.random() < 0.02:  # deleted while it is waiting
            return QueuedJob(jobid, submit, runs, at + 60 + chance.randrange(3600))
        while not runs or (len(runs) < 3 and chance.random() < 0.03):
            start = at + 60 + int(chance.expovariate(1 / 900))
            at = start + 60 + int(chance.expovariate(1 / 2400))
            runs.append((start, at))
        return QueuedJob(jobid, submit, runs, at)

    def advance(self, now: int, wall: float, down: set[str]) -> None:
        """See SimulatedScheduler."""
        del wall
        self.queue.now = now
        self.queue.down = bool(down & {"scheduler", "network"})

    def after_poll(self, now: int) -> None:
        """See SimulatedScheduler."""

    def source(self, clock: Clock) -> Any:
        """See SimulatedScheduler."""
        history = float(HISTORY[self._kind])
        if self._kind == "qstat":
            return qstat.Qstat("c1", qstat.QstatOptions(history=history), clock.wall)
        return bjobs.Bjobs("c1", bjobs.BjobsOptions(history=history), clock.wall)

    def expected(self) -> dict[Key, Check]:
        """What the database is to have, as far as it could be told."""
        answers = Answers()
        answers.times = self.queue.answered
        found: dict[Key, Check] = {}
        for job in self.jobs:
            if self._kind == "qstat":
                found |= _by_run(job, answers)
            elif check := _last(job, job.submit, answers, HISTORY["bjobs"]):
                found[job.jobid, job.submit, 1] = check
        return found


def _last(job: QueuedJob, begun: int, answers: Answers, history: int) -> Check | None:
    """What is known of a job, or of its last run; None: nothing."""
    start = job.runs[-1][0] if job.runs else None
    if answers.within(job.end, job.end + history):
        return is_("COMPLETED" if job.runs else "CANCELLED", start, job.end)
    if answers.within(begun, job.end):  # the scheduler forgot it before its end was seen
        return lambda found: (found.state, found.end) == ("VANISHED", None)
    return None


def _by_run(job: QueuedJob, answers: Answers) -> dict[Key, Check]:
    """PBS numbers the runs: each is known if it was shown while it was the newest."""
    known: dict[Key, Check] = {}
    begun = job.submit
    for run, (start, end) in enumerate(job.runs[:-1], 1):
        if answers.within(begun, end):
            seen_to_run = answers.within(start, end)
            later = answers.within(end, job.end + HISTORY["qstat"])
            known[job.jobid, job.submit, run] = _requeued(
                start if seen_to_run else None, end, job.end, later=later
            )
        begun = end
    if check := _last(job, begun, answers, HISTORY["qstat"]):
        known[job.jobid, job.submit, max(1, len(job.runs))] = check
    return known


def _requeued(start: int | None, end: int, last: int, *, later: bool) -> Check:
    def check(found: Found) -> bool:
        if not later:
            return (found.state, found.start, found.end) == ("VANISHED", start, None)
        over = found.end is not None and end <= found.end <= last
        return (found.state, found.start, over) == ("REQUEUED", start, True)

    return check


def queue_month(
    folder: Path, kind: str, total: int, seed: int, days: int = 30, step: int = 1800
) -> Differences:
    """A month by `qstat` or `bjobs`."""
    month = QueueMonth(kind, total, days, seed)
    with contextlib.ExitStack() as patched:
        for module in (qstat, qstat_jobs, subprocesses):  # each of these runs a command
            patched.enter_context(patch.object(module, "run", month.queue.run))
        engine = simulate(folder, month, month.outages, days, step)
    return compared(engine, month.expected())
