"""Blocks of the documentation that need no more than the programs, typed as they stand."""

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
from tests.e2e.processes import until
from tests.test_documented_commands import SHELL

pytestmark = pytest.mark.e2e

FIRST = ".venv/bin/batchjob run --name first"
BY = "tests/test_shell_blocks.py"
HERE = [(page, begin) for page, runs in RUNS.items() for begin, run in runs.items() if run.by == BY]


class Home:
    """A home directory with `.venv` in it, and a shell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The interpreter of these tests, as the environment that a page has made before.
        (path / ".venv").symlink_to(Path(sys.executable).parents[1], target_is_directory=True)
        for made in (
            ".local/share/bash-completion/completions",
            ".zfunc",
            ".config/fish/completions",
        ):
            (path / made).mkdir(parents=True)
        (path / "train.py").write_text("sum(range(10**6))\n")  # which docs/run.md runs

    def types(self, text: str) -> str:
        """What the shell printed; AssertionError where a command fails."""
        programs = f"{self.path}/.venv/bin:{os.environ['PATH']}"
        environment = {"HOME": str(self.path), "PATH": programs, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.path, env=environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running_job(self) -> Iterator[None]:
        """A job on this machine, without which `batchjob doctor` finds none to measure."""
        argv = [str(self.path / ".venv/bin/batchjob"), "run", "--name", "another", "sleep", "3000"]
        environment = {"HOME": str(self.path), "PATH": os.environ["PATH"]}
        with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as job:
            try:
                until(lambda: '"another"' in self.types("batchjob jobs --format=json"), "it runs")
                yield
            finally:
                job.terminate()

    def first_job(self) -> str:
        """The id of the job that the README's second block runs."""
        (row,) = json.loads(self.types("batchjob jobs --name first --format=json"))
        return str(row["jobid"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    path = tmp_path_factory.mktemp("home")
    made = Home(path)
    made.types(_text("README.md", FIRST))
    with made.running_job():
        yield made
    shutil.rmtree(path, ignore_errors=True)


def _text(page: str, begin: str) -> str:
    (text,) = [each.text for each in SHELL if each.page == page and each.text.startswith(begin)]
    return text


@pytest.mark.parametrize(("page", "begin"), HERE)
def test_it_works_as_it_stands(home: Home, page: str, begin: str) -> None:
    if begin != FIRST:  # which was typed before all others
        home.types(_text(page, begin).replace("job 3f2a", f"job {home.first_job()[:8]}"))
