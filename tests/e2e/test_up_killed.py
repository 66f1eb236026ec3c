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
from tests.e2e.up import BatchjobUp, launch_batchjob_up, run_command, running_batchjob_up
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

SLEEP_COMMAND = ("--", "sleep", "3600")
DELAYED_COMMAND = ("--at", "+2h", "--", "true")
RUN_COMMANDS = {
    "completed": ("--", "true"),
    "failed": ("--", "sh", "-c", "exit 3"),
    "timeout": ("--time-limit", "300ms", *SLEEP_COMMAND),
    "running": SLEEP_COMMAND,
    "pending": DELAYED_COMMAND,
    "queued": SLEEP_COMMAND,
    "stopped": SLEEP_COMMAND,
    "cancelled": DELAYED_COMMAND,
    "vanished": SLEEP_COMMAND,
}
"""Options and command of a run of each kind; some reach their state only by a later command."""
ENDING_COMMANDS = {"running": ("stop", "stopped"), "pending": ("cancel", "cancelled"),
        "queued": ("cancel", "cancelled")}  # fmt: skip
"""By kind of a run that goes on: the subcommand that ends it, and its kind after that."""
MAX_ALIVE_RUNS = 12  # each has a supervisor


class StartedRuns:
    """Runs in one data directory, and the state each must have whatever happens to `up`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.data_directory = folder / "data"
        self.kinds: dict[str, str] = {}
        self.random = random.Random(seed)
        self._queue_config = folder / "run.yml"
        self._queue_config.write_text("max-runs: 1\n")
        self._slot_holder = self._start_run("queued")  # occupies the only slot
        self.kinds[self._slot_holder] = "running"

    def start(self, kind: str) -> None:
        """Start a run and bring it to its state."""
        jobid = self._start_run(kind)
        if kind == "stopped":
            self._run_command("stop", "--grace=0", jobid)
        elif kind == "cancelled":
            self._run_command("cancel", jobid)
        elif kind == "vanished":
            os.kill(self.record(jobid)["supervisor"]["pid"], signal.SIGKILL)
        self.kinds[jobid] = kind

    def end_some(self, max_alive: int) -> None:
        """End random runs that go on, until at most `max_alive` are left."""
        alive = sorted(each for each in self.kinds if self.kinds[each] in ENDING_COMMANDS)
        # Its end would start a queued run, so it is ended last.
        alive.remove(self._slot_holder)
        runs_to_end = self.random.sample(alive, max(0, len(alive) + 1 - max(max_alive, 1)))
        for jobid in (*runs_to_end, *([] if max_alive else [self._slot_holder])):
            subcommand, final_kind = ENDING_COMMANDS[self.kinds[jobid]]
            self._run_command(subcommand, jobid)
            self.kinds[jobid] = final_kind

    def record(self, jobid: str) -> Any:
        return json.loads((self.data_directory / "runs" / f"{jobid}.json").read_text())

    def expected_states(self) -> dict[str, str]:
        """State by job id; queued runs are pending."""
        return {each: {"queued": "pending"}.get(kind, kind) for each, kind in self.kinds.items()}

    def _start_run(self, kind: str) -> str:
        queue_options = [f"--config.file={self._queue_config}"] if kind == "queued" else []
        return self._run_command(
            "run", "--detach", "--quiet", *queue_options, *RUN_COMMANDS[kind]
        ).strip()

    def _run_command(self, subcommand: str, *arguments: str) -> str:
        process = run_command(self.data_directory, subcommand, *arguments)
        assert process.returncode == 0, (subcommand, arguments, process.stderr)
        return process.stdout


def api_rows(instance: BatchjobUp) -> dict[str, Any]:
    """The API's row of each run, by job id; asserts that no run is listed twice."""
    rows = instance.get_api("jobs?cluster=local&limit=1000")
    rows_by_id = {row["jobid"]: row for row in rows}
    assert len(rows_by_id) == len(rows)
    return rows_by_id


def shown_states(instance: BatchjobUp) -> dict[str, str]:
    """State by job id, as the pages name it."""
    return {
        jobid: "stopped" if row["state_word"] == "stopped" else row["state"].lower()
        for jobid, row in api_rows(instance).items()
    }


def sample_counts(data_directory: Path) -> Counter[tuple[str, float]]:
    """How often each run was sampled at each time."""
    counts: Counter[tuple[str, float]] = Counter()
    for path in (data_directory / "samples").rglob("*.jsonl.gz"):
        text = b""
        with contextlib.suppress(EOFError), gzip.open(path) as file:
            while chunk := file.read1(1 << 16):
                text += chunk
        samples = map(json.loads, text.splitlines())
        counts.update((each["jobid"], each["time"]) for each in samples)
    return counts


def test_killing_up_does_not_lose_duplicate_or_end_runs(tmp_path: Path, long_form: bool) -> None:
    runs = StartedRuns(tmp_path, seed=3)
    kinds = sorted(RUN_COMMANDS)
    short_intervals = ("--samples.interval=0.5s", "--interval=0.5s")
    for number in range(50 if long_form else 5):
        with launch_batchjob_up(
            runs.data_directory, tmp_path / f"log{number}", *short_intervals
        ) as instance:
            if number % 2:  # otherwise it may be killed while it starts
                until(instance.is_ready, "up", 60)
            for kind in runs.random.sample(kinds, 3) if number else kinds:
                runs.start(kind)
            runs.end_some(MAX_ALIVE_RUNS)
            time.sleep(runs.random.uniform(0.0, 2.0))
            instance.process.kill()
            instance.process.wait()
        if number % 3 == 0:  # a run may also start while `up` is not running
            runs.start(runs.random.choice(kinds))
    assert set(runs.kinds.values()) == set(RUN_COMMANDS)
    samples = sample_counts(runs.data_directory)
    assert samples
    assert set(samples.values()) == {1}
    with running_batchjob_up(runs.data_directory, tmp_path / "log", *short_intervals) as instance:
        until(
            lambda: shown_states(instance) == runs.expected_states(),
            "all runs are as they were",
            120,
        )
        runs.end_some(0)
        until(lambda: shown_states(instance) == runs.expected_states(), "all runs have ended", 120)
        for jobid, row in api_rows(instance).items():
            record = runs.record(jobid)
            assert row["exit_code"] == record.get("exit_code")
            if row["state"] != "VANISHED":  # its end was not observed
                assert row["end_time"] == pytest.approx(record["end_time"] * 1000, abs=1)
    with contextlib.closing(sqlite3.connect(runs.data_directory / "jobs.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    run_command(
        runs.data_directory, "run", "--quiet", "--", "true"
    )  # the next run removes what killed ones left
    assert not [path for jobid in runs.kinds for path in own_cgroups(jobid)]
