"""The tables of `batchjob metrics` for a run of known limits, with every group of metrics on."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batchjob_cli.run.conftest import own_cgroups
from tests.helpers.processes import end, free_ports, run
from tests.helpers.waiting import until
from tests.security.remote_up import ROOT, start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="limits need root's cgroups")

OPEN_FILES, FILES_LIMIT = 40, 200
PROGRAM = f"""
import resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES_LIMIT}, {FILES_LIMIT}))
held = [open("/dev/null") for _ in range({OPEN_FILES})]
memory = bytearray(64 << 20)
memory[::4096] = b"x" * len(memory[::4096])
while time.process_time() < 600: time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of `batchjob up` and of a run named `held`, which has its samples."""
    folder = tmp_path_factory.mktemp("tables")
    (port,) = free_ports(1)
    process = start(
        folder, f"127.0.0.1:{port}", "--metrics=all", "--samples.interval=1s", "--interval=1s"
    )
    data_directory = folder / "data"
    limits = ("--cpus=2", "--memory=256M")
    jobid = ""
    try:
        jobid = command_output(data_directory, "run", "--detach", "--name=held", *limits, "--",
                        sys.executable, "-c", PROGRAM).strip()  # fmt: skip
        if not own_cgroups(jobid):
            pytest.skip("runs have no cgroup here")
        yield data_directory
    finally:
        command_output(data_directory, "stop", "--grace=0", jobid)
        end(process)


def command_output(data: Path, *arguments: str) -> str:
    argv = [sys.executable, "-m", "batchjob_cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BATCHJOB_DATA": str(data)}
    done = run(argv, timeout=120, env=environment)
    return done.stdout


def last_row(data: Path, type: str) -> list[tuple[str, str]]:
    """Heading and value of each column, of the last sample."""
    table = command_output(data, "metrics", f"--type={type}", "--no-follow", "--limit=1", "held")
    lines = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    return list(zip(*lines, strict=True)) if len(lines) == 2 else []


def value_limit_percent(data: Path, type: str, heading: str) -> tuple[str, str, float] | None:
    """A column and the two that follow it, once all of them are known."""
    row = last_row(data, type)
    index = [each for each, _ in row].index(heading) if row else 0
    three = row[index : index + 3]
    if not row or "-" in dict(three).values():
        return None
    (_, value), (limit_heading, limit), (percent_heading, percent) = three
    assert (limit_heading, percent_heading) == ("LIMIT", "% OF LIMIT")
    return value, limit, float(percent)


def test_open_files_and_their_limit(data: Path) -> None:
    def known() -> tuple[str, str, float] | None:
        found = value_limit_percent(data, "processes", "OPEN FILES")
        return found if found and int(found[0]) >= OPEN_FILES else None

    files, limit, percent = until(known, "open files", 60)
    assert OPEN_FILES <= int(files) < OPEN_FILES + 10
    assert int(limit) == FILES_LIMIT
    assert percent == pytest.approx(100 * int(files) / FILES_LIMIT, abs=0.1)


def test_memory_and_its_limit(data: Path) -> None:
    def known() -> list[tuple[str, str]]:
        row = dict(last_row(data, "memory"))
        return [*row.items()] if row and float(row["% OF LIMIT"]) >= 25 else []

    row = dict(until(known, "memory", 60))
    assert row["LIMIT"] == "256 MiB"
    assert 25 <= float(row["% OF LIMIT"]) < 50


def test_cpu_time_in_percent_of_cpus(data: Path) -> None:
    def known() -> list[tuple[str, str]]:
        row = dict(last_row(data, "cpu"))
        return [*row.items()] if row and row["CPU %"] != "-" else []

    row = dict(until(known, "CPU time", 60))
    assert float(row["CPUS"]) == 2
    assert float(row["% OF CPUS"]) == pytest.approx(float(row["CPU %"]) / 2, abs=0.1)
