"""A month of local runs: files that are written, arrive late with an old time, and are deleted."""

import os
import random
import uuid
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from batchjob.local_runs import record
from batchjob.local_runs.accounting import LocalRunsOptions, Runs
from batchjob.local_runs.record import TOMBSTONE, Run, SupervisorProcess
from batchjob.schedulers.states import JobState
from benchmarks.months.site import (
    BEGIN,
    DAY,
    HOUR,
    Check,
    Clock,
    Differences,
    Key,
    compared,
    is_,
    outages,
    simulate,
)

BOOT = "5f0c6f2e-6f6e-4b52-9f0b-9a3d7d0d5a01"
KEPT = 3 * DAY  # how long files of ended runs are kept


class RunsMonth:
    """Runs, their files, and a /proc in which their supervisors live."""

    def __init__(self, folder: Path, total: int, days: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.outages = outages(self.chance, days)
        self._directory, self._procfs = folder / "runs", folder / "proc"
        self._away = folder / "away"
        self._directory.mkdir()
        boot = self._procfs / "sys/kernel/random"
        boot.mkdir(parents=True)
        (boot / "boot_id").write_text(BOOT)
        self._events: list[tuple[int, int, str, Run]] = []
        self._number = 0
        self.wanted: dict[Key, Check] = {}
        for number in range(total):
            self._add(number, BEGIN + self.chance.randrange(days * DAY))

    def _add(self, number: int, start: int) -> None:
        chance = self.chance
        jobid = str(uuid.UUID(int=chance.getrandbits(128)))
        end = start + 1 + int(chance.expovariate(1 / 3000))
        run = Run(
            jobid, os.uname().nodename, "", 1001, start, start, JobState.RUNNING,
            SupervisorProcess(number + 1, 1, BOOT), name="train",
        )  # fmt: skip
        over = run._replace(state=JobState.COMPLETED, end_time=end, exit_code=0)
        fate = chance.random()
        delay = chance.randrange(12 * HOUR) if chance.random() < 0.003 else 0
        self._at(start, "begins", run)
        if fate < 0.01:  # killed together with its supervisor, so that its end is not recorded
            self._at(end, "dies", run)
            self._at(end + KEPT, "is dropped", run)
            self.wanted[jobid, start, 1] = is_("VANISHED", start, None)
            return
        self._at(end + delay, "ends", over)
        if fate < 0.015:
            self._at(end + delay + chance.randrange(DAY), "is deleted", over)
            return
        self._at(end + delay + KEPT, "is dropped", over)
        self.wanted[jobid, start, 1] = is_("COMPLETED", start, end)

    def _at(self, at: int, what: str, run: Run) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, what, run))

    def advance(self, now: int, wall: float, down: set[str]) -> None:
        """See SimulatedScheduler; the directory is on a server that cannot be reached at times."""
        if self._away.exists():
            self._away.rename(self._directory)
        ahead = wall - now
        while self._events and self._events[0][0] <= now:
            at, _, what, run = heappop(self._events)
            self._happens(what, run, at + ahead)
        if down & {"scheduler", "network"}:
            self._directory.rename(self._away)

    def _happens(self, what: str, run: Run, at: float) -> None:
        path, process = self._directory / f"{run.jobid}.json", self._process(run)
        if what in ("begins", "ends"):
            record.write(self._directory, run, durable=False)
            stamp = at if run.end_time is None else run.end_time + at - int(at)
            os.utime(path, (stamp, stamp))
        if what == "begins":
            process.mkdir()
            (process / "stat").write_text(f"{run.supervisor.pid} (x) S {' 0' * 18} 1 0\n")
        elif what in ("ends", "dies"):
            (process / "stat").unlink()
            process.rmdir()
        else:
            path.unlink()
            if what == "is deleted":
                path.with_suffix(TOMBSTONE).touch()

    def _process(self, run: Run) -> Path:
        return self._procfs / str(run.supervisor.pid)

    def after_poll(self, now: int) -> None:
        """See SimulatedScheduler."""

    def source(self, clock: Clock) -> Any:
        """See SimulatedScheduler."""
        options = LocalRunsOptions(path=str(self._directory))
        return Runs("c1", options, clock.wall, procfs=str(self._procfs))


def runs_month(
    folder: Path, kind: str, total: int, seed: int, days: int = 30, step: int = 1800
) -> Differences:
    """A month of local runs."""
    assert kind == "runs"
    month = RunsMonth(folder, total, days, seed)
    engine = simulate(folder, month, month.outages, days, step)
    return compared(engine, month.wanted)
