"""`batchjob up` killed at random instants and started again, with runs in every state."""

import contextlib
import gzip
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.batchjob_cli.run.conftest import own_cgroups
from tests.e2e.processes import until
from tests.e2e.up import Up, command, launched, up

pytestmark = pytest.mark.e2e

SLEEP = ("--", "sleep", "3600")
LATER = ("--at", "+2h", "--", "true")
KINDS = {
    "completed": ("--", "true"),
    "failed": ("--", "sh", "-c", "exit 3"),
    "timeout": ("--time-limit", "300ms", *SLEEP),
    "running": SLEEP,
    "pending": LATER,
    "queued": SLEEP,
    "stopped": SLEEP,
    "cancelled": LATER,
    "vanished": SLEEP,
}
"""Options and command of a run that comes to a state by itself, or is brought to it."""
ENDS = {"running": ("stop", "stopped"), "pending": ("cancel", "cancelled"),
        "queued": ("cancel", "cancelled")}  # fmt: skip
"""The command that ends a run of a kind that goes on, and how it is called then."""
MOST_ALIVE = 12  # each has a supervisor


class Runs:
    """The runs of a data directory: what each has to be called, whatever is done to `up`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.data = folder / "data"
        self.kinds: dict[str, str] = {}
        self.chance = random.Random(seed)
        self._one_at_once = folder / "run.yml"
        self._one_at_once.write_text("max-runs: 1\n")
        self._holder = self._started("queued")  # has the only place, and keeps it
        self.kinds[self._holder] = "running"

    def begin(self, kind: str) -> None:
        """Start a run, and bring it to its state."""
        jobid = self._started(kind)
        if kind == "stopped":
            self._told("stop", "--grace=0", jobid)
        elif kind == "cancelled":
            self._told("cancel", jobid)
        elif kind == "vanished":
            os.kill(self.record(jobid)["supervisor"]["pid"], signal.SIGKILL)
        self.kinds[jobid] = kind

    def thin_out(self, most: int) -> None:
        """End some of those that go on, whichever, until there are no more than so many."""
        alive = sorted(each for each in self.kinds if self.kinds[each] in ENDS)
        # Its end would let one of the queue begin, so that of the place's holder comes last.
        alive.remove(self._holder)
        ended = self.chance.sample(alive, max(0, len(alive) + 1 - max(most, 1)))
        for jobid in (*ended, *([] if most else [self._holder])):
            ending, called = ENDS[self.kinds[jobid]]
            self._told(ending, jobid)
            self.kinds[jobid] = called

    def record(self, jobid: str) -> Any:
        return json.loads((self.data / "runs" / f"{jobid}.json").read_text())

    def expected(self) -> dict[str, str]:
        """State by id: those that queue are pending."""
        return {each: {"queued": "pending"}.get(kind, kind) for each, kind in self.kinds.items()}

    def _started(self, kind: str) -> str:
        queue = [f"--config.file={self._one_at_once}"] if kind == "queued" else []
        return self._told("run", "--detach", "--quiet", *queue, *KINDS[kind]).strip()

    def _told(self, name: str, *arguments: str) -> str:
        done = command(self.data, name, *arguments)
        assert done.returncode == 0, (name, arguments, done.stderr)
        return done.stdout


def shown(made: Up) -> dict[str, Any]:
    """The row of each run; the list has none twice."""
    rows = made.api("jobs?cluster=local&limit=1000")
    found = {row["jobid"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def states(made: Up) -> dict[str, str]:
    """State by id, as people are told it."""
    return {
        jobid: "stopped" if row["state_word"] == "stopped" else row["state"].lower()
        for jobid, row in shown(made).items()
    }


def sampled(data: Path) -> Counter[tuple[str, float]]:
    """How often each moment of a run was sampled."""
    found: Counter[tuple[str, float]] = Counter()
    for path in (data / "samples").rglob("*.jsonl.gz"):
        text = b""
        with contextlib.suppress(EOFError), gzip.open(path) as file:
            while piece := file.read1(1 << 16):
                text += piece
        samples = map(json.loads, text.splitlines())
        found.update((each["jobid"], each["time"]) for each in samples)
    return found


def test_killed_at_any_instant_it_loses_no_run_doubles_none_and_ends_none(
    tmp_path: Path, long_form: bool
) -> None:
    runs = Runs(tmp_path, seed=3)
    kinds = sorted(KINDS)
    quick = ("--samples.interval=0.5s", "--interval=0.5s")
    for number in range(50 if long_form else 5):
        with launched(runs.data, tmp_path / f"log{number}", *quick) as made:
            if number % 2:  # else it may be killed while it is starting
                until(made.answers, "up", 60)
            for kind in runs.chance.sample(kinds, 3) if number else kinds:
                runs.begin(kind)
            runs.thin_out(MOST_ALIVE)
            time.sleep(runs.chance.uniform(0.0, 2.0))
            made.process.kill()
            made.process.wait()
        if number % 3 == 0:  # and while there is none
            runs.begin(runs.chance.choice(kinds))
    assert set(runs.kinds.values()) == set(KINDS)
    samples = sampled(runs.data)
    assert samples
    assert set(samples.values()) == {1}
    with up(runs.data, tmp_path / "log", *quick) as made:
        until(lambda: states(made) == runs.expected(), "all runs are as they were", 120)
        runs.thin_out(0)
        until(lambda: states(made) == runs.expected(), "all runs have ended", 120)
        for jobid, row in shown(made).items():
            record = runs.record(jobid)
            assert row["exit_code"] == record.get("exit_code")
            if row["state"] != "VANISHED":  # whose end nobody has seen
                assert row["end_time"] == pytest.approx(record["end_time"] * 1000, abs=1)
    with contextlib.closing(sqlite3.connect(runs.data / "jobs.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    command(runs.data, "run", "--quiet", "--", "true")  # the next run clears up after killed ones
    assert not [path for jobid in runs.kinds for path in own_cgroups(jobid)]
