"""Shell blocks of the documentation that need only the programs of batchjob are run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documented_blocks import RUNS
from tests.helpers.waiting import scaled, until
from tests.test_documented_commands import SHELL_BLOCKS

pytestmark = pytest.mark.e2e

FIRST_RUN = ".venv/bin/batchjob run --name first"
THIS_MODULE = "tests/test_shell_blocks.py"
BLOCKS_RUN_HERE = [
    (page, begin)
    for page, runs in RUNS.items()
    for begin, run in runs.items()
    if run.by == THIS_MODULE
]


class HomeDirectory:
    """A home directory with `.venv` in it, and a shell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The environment of these tests stands for the one that the page creates.
        (path / ".venv").symlink_to(Path(sys.executable).parents[1], target_is_directory=True)
        for folder in (
            ".local/share/bash-completion/completions",
            ".zfunc",
            ".config/fish/completions",
        ):
            (path / folder).mkdir(parents=True)
        (path / "train.py").write_text("sum(range(10**6))\n")  # run by docs/run.md

    def run_shell(self, text: str) -> str:
        """Run a block in a shell; returns its output. A command that fails is an AssertionError."""
        programs = f"{self.path}/.venv/bin:{os.environ['PATH']}"
        environment = {"HOME": str(self.path), "PATH": programs, "LC_ALL": "C.UTF-8"}
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.path, env=environment, capture_output=True, text=True, check=False,
            timeout=scaled(300),
        )  # fmt: skip
        assert result.returncode == 0, f"{text}\n{result.stdout}{result.stderr}"
        return result.stdout

    @contextmanager
    def running_job(self) -> Iterator[None]:
        """Run a job on this machine, so that `batchjob doctor` finds one to measure."""
        argv = [str(self.path / ".venv/bin/batchjob"), "run", "--name", "another", "sleep", "3000"]
        environment = {"HOME": str(self.path), "PATH": os.environ["PATH"]}
        with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as job:
            try:
                until(
                    lambda: '"another"' in self.run_shell("batchjob jobs --format=json"), "the job"
                )
                yield
            finally:
                job.terminate()

    def first_job(self) -> str:
        """The id of the job that the README's second block runs."""
        (row,) = json.loads(self.run_shell("batchjob jobs --name first --format=json"))
        return str(row["jobid"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HomeDirectory]:
    path = tmp_path_factory.mktemp("home")
    home_directory = HomeDirectory(path)
    home_directory.run_shell(_block_text("README.md", FIRST_RUN))
    with home_directory.running_job():
        yield home_directory
    shutil.rmtree(path, ignore_errors=True)


def _block_text(page: str, begin: str) -> str:
    (text,) = [
        each.text for each in SHELL_BLOCKS if each.page == page and each.text.startswith(begin)
    ]
    return text


@pytest.mark.parametrize(("page", "begin"), BLOCKS_RUN_HERE)
def test_documented_block_runs(home: HomeDirectory, page: str, begin: str) -> None:
    if begin != FIRST_RUN:  # which the fixture has run
        home.run_shell(_block_text(page, begin).replace("3f2a", home.first_job()[:8]))
