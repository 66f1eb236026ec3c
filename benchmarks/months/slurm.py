"""A month of a busy Slurm: arrays, het jobs, requeues, node failures, a federation's ids that wrap,
jobs cancelled while held, edits after the end; accounting that is late, out of order or cut off.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from batchjob.schedulers.slurm.accounting import sacct, slurm_rest
from batchjob.schedulers.slurm.slurmrestd import Slurmrestd
from benchmarks.months.site import (
    BEGIN,
    DAY,
    HOUR,
    Check,
    Clock,
    Differences,
    Key,
    compared,
    outages,
    simulate,
)
from tests.simulated.slurm import SimulatedSlurm, SlurmJob, requeued

FEDERATED = 3 << 26  # the cluster's number in a federation, as part of slurmctld's job ids


class SlurmMonth:
    """Slurm's jobs of a month, made day by day."""

    def __init__(self, kind: str, total: int, days: int, seed: int) -> None:
        self._kind, self._made = kind, 0
        self.chance = random.Random(seed)
        self.days, self.per_day = days, max(1, total // days)
        self.late = min(0.003, 300 / total)
        self.outages = outages(self.chance, days)
        self.slurm = SimulatedSlurm(BEGIN)
        self.jobs: list[SlurmJob] = []
        self.edits: list[tuple[int, SlurmJob]] = []
        self._next = 650_000  # ids wrap around within a month of a million jobs
        self._used: dict[int, int] = {}  # id → end of the last job with it

    def _id(self, number: int = 1) -> int:
        first = self._next
        self._next += number
        if self._next > 700_000 + number:
            self._next = 1
        return FEDERATED + first

    def _arrives(self, at: int) -> int:
        """When accounting has heard of what happens then."""
        delay = self.chance.choice((0, 1, 2, 5))
        if self.chance.random() < self.late:
            delay = self.chance.randrange(12 * HOUR)
        for outage in self.outages:
            if outage.what in ("link", "scheduler") and outage.begin <= at < outage.end:
                delay = max(delay, outage.end - at + self.chance.randrange(600))
        return at + delay

    def _life(self, submit: int) -> tuple[int, int]:
        start = submit + int(self.chance.expovariate(1 / 900))
        return start, start + 1 + int(self.chance.expovariate(1 / 2400))

    def _add(self, job: SlurmJob) -> SlurmJob:
        job.known_at = self._arrives(job.submit)
        job.ended_at = self._arrives(job.end)
        self.jobs.append(self.slurm.add(job))
        if self.chance.random() < 0.001:
            self.edits.append((job.end + self.chance.randrange(2 * DAY), job))
        return job

    def _day(self, number: int) -> None:
        """Make the jobs that are submitted on one day."""
        chance, made = self.chance, 0
        while made < self.per_day:
            submit = BEGIN + number * DAY + chance.randrange(DAY)
            kind = chance.random()
            width = chance.randrange(2, 20) if kind < 0.05 else 2 if kind < 0.07 else 1
            first = self._id(width)
            for index in range(width):
                start, end = self._life(submit)
                display = f"{first}_{index}" if kind < 0.05 else ""
                display = f"{first}+{index}" if 0.05 <= kind < 0.07 else display
                job = SlurmJob(
                    first + index, submit, start, end, display=display, steps=chance.choice((0, 2)),
                    user=f"user{chance.randrange(200)}", account=f"account{chance.randrange(30)}",
                    state=chance.choices(("COMPLETED", "FAILED", "TIMEOUT"), (90, 8, 2))[0],
                )  # fmt: skip
                if chance.random() < 0.02:
                    job.start, job.state = None, "CANCELLED"
                    job.steps = 0
                elif chance.random() < 0.02:
                    job.state = chance.choice(("REQUEUED", "NODE_FAIL"))
                self._add(job)
                if job.state in ("REQUEUED", "NODE_FAIL"):
                    start, last = self._life(end + 1)
                    again = requeued(job, end + 1, start, last)
                    again.state = "COMPLETED"
                    self._add(again)
                made += 1

    def advance(self, now: int, wall: float, down: set[str]) -> None:
        """See SimulatedScheduler."""
        del wall
        slurm = self.slurm
        while self._made < self.days and now > BEGIN + self._made * DAY:
            self._day(self._made)
            self._made += 1
        slurm.now = now
        slurm.dbd_down = bool(down & {"scheduler", "network"})
        slurm.ctld_down = bool(down & {"queue", "network"})
        for edit in [edit for edit in self.edits if edit[0] <= now]:
            edit[1].account = "edited"
            self.edits.remove(edit)

    def after_poll(self, now: int) -> None:
        """See SimulatedScheduler."""

    def source(self, clock: Clock) -> Any:
        """See SimulatedScheduler."""
        if self._kind == "sacct":
            return sacct.Sacct("c1", sacct.SacctOptions(), clock.wall, clock.monotonic)
        options = slurm_rest.SlurmRestOptions(version="v0.0.42")
        return slurm_rest.SlurmRest("c1", options, clock.wall, clock.monotonic)

    def expected(self) -> dict[Key, Check]:
        """What the database is to have of each incarnation."""
        return {(str(job.jobid), job.submit, 1): _is(job) for job in self.jobs}


def _is(job: SlurmJob) -> Check:
    wanted = (job.state, job.start, job.end, job.account, job.steps)
    return lambda found: found[:5] == wanted


def slurm_month(
    folder: Path, kind: str, total: int, seed: int, days: int = 30, step: int = 1800
) -> Differences:
    """A month of Slurm by `sacct` or `slurm_rest`, and three quiet days."""
    month = SlurmMonth(kind, total, days, seed)

    def get(_: Slurmrestd, daemon: str, path: str, query: Mapping[str, str] | None = None) -> Any:
        return month.slurm.get(daemon, path, query or {})

    with patch.object(sacct, "run", month.slurm.run), patch.object(Slurmrestd, "get", get):
        engine = simulate(folder, month, month.outages, days, step)
    return compared(engine, month.expected())
