"""The `batchjob` command as a process, with a data directory of the test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import end
from tests.helpers.waiting import scaled

PROGRAM = (sys.executable, "-c", "import sys; from batchjob_cli.main import main; sys.exit(main())")
SLEEPER = ("sh", "-c", "echo ready; exec sleep 600")
CGROUP_MODES = ("never", "auto")


def heed_signals() -> None:
    """The tests may run under nohup or in a shell's background, whose children ignore these."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class BatchjobCommand:
    """`batchjob ...` with a data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.environment = {**os.environ, "BATCHJOB_DATA": str(data)}
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *arguments],
            **{"stdin": subprocess.DEVNULL, "capture_output": True, "text": True,
               "timeout": scaled(60), "env": self.environment} | options,
        )  # fmt: skip

    def start(self, *arguments: str, **options) -> subprocess.Popen[str]:
        self.started.append(subprocess.Popen(
            [*PROGRAM, *arguments],
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
               "text": True, "env": self.environment, "preexec_fn": heed_signals} | options,
        ))  # fmt: skip
        return self.started[-1]

    def records(self) -> list[dict]:
        paths = (self.data / "runs").glob("*.json")
        return sorted((json.loads(p.read_text()) for p in paths), key=lambda r: r["submit_time"])

    def record(self) -> dict:
        (only,) = self.records()
        return only

    def output(self, stream: str = "stdout") -> bytes:
        from batchjob.local_runs.output import Reader

        reader = Reader(self.data / "logs" / self.record()["jobid"], stream)
        return b"".join(line.text + b"\n" * line.is_complete for line in reader.read())


@pytest.fixture
def batchjob(tmp_path) -> Iterator[BatchjobCommand]:
    command = BatchjobCommand(tmp_path / "data")
    yield command
    for process in command.started:  # the supervisor ends what it has started
        with process:
            end(process)


@pytest.fixture(params=CGROUP_MODES)
def cgroup_mode(request) -> str:
    """`--cgroup`: never, and where this machine allows it."""
    return request.param


def own_cgroups(jobid: str) -> list[Path]:
    """Directories of a run, wherever they are."""
    mounts = ("", *os.listdir("/sys/fs/cgroup")) if os.path.isdir("/sys/fs/cgroup") else ()
    paths = [Path("/sys/fs/cgroup", mount, "batchjob.slice", f"run-{jobid}") for mount in mounts]
    return [path for path in paths if path.exists()]
