"""The README's first command shows all that it promises, soon."""

import contextlib
import os
import socket
import tempfile
from pathlib import Path

import pytest
import sqlalchemy

from tests.e2e.first_command import run_first_command
from tests.e2e.up import ENVIRONMENT, ROOT
from tests.helpers.processes import call, daemon, succeeds
from tests.helpers.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="numbers of live jobs need a cgroup"),
]

CPU_SECONDS = 15.0  # beside other work, which makes CPUs slower; alone it takes half of that


def test_first_command_shows_jobs_of_all_kinds(tmp_path: Path) -> None:
    assert run_first_command(tmp_path).cpu_seconds < CPU_SECONDS


NOBODY = 65534
# $1: the libraries. $2: this tree. Root's directories may be closed to the user.
AS_NOBODY = """
mount --bind "$1" /mnt
mount --bind "$2" /srv
shift 2
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"""
SYSTEM_PYTHON = "/usr/bin/python3"


def as_nobody(*arguments: str) -> list[str]:
    """The command line of a Python as an ordinary user."""
    libraries = Path(sqlalchemy.__file__).parents[1]
    within = ["unshare", "--mount", "sh", "-ec", AS_NOBODY, "sh", str(libraries), str(ROOT)]
    return [*within, SYSTEM_PYTHON, *arguments]


def test_commands_of_the_readme_as_an_ordinary_user_beside_anothers_up(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PYTHONPATH": "/srv:/mnt"}
    if not succeeds(as_nobody("-c", "import uvicorn, pydantic_core, httptools"), environment):
        pytest.skip(f"{SYSTEM_PYTHON} is not the Python of the libraries")
    log, home = tmp_path / "log", tempfile.TemporaryDirectory(prefix="nobody-")
    os.chown(home.name, NOBODY, NOBODY)
    environment["HOME"] = home.name

    def batchjob(*arguments: str) -> str:
        return call(*as_nobody("-m", "batchjob_cli", *arguments), env=environment)

    with home, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody else's `up` may run here
            stack.enter_context(socket.create_server(("127.0.0.1", 10912)))
        up = as_nobody("-m", "batchjob_cli", "up")
        stack.enter_context(daemon(up, log, env=environment))
        until(lambda: "metrics " in log.read_text(), "up", 60)
        assert "10912 is in use; the pages are on" in log.read_text()
        limits = ("--name", "first", "--cpus", "1", "--memory", "1G")
        command = (SYSTEM_PYTHON, "-c", "print(sum(range(10**7)))")
        assert batchjob("run", *limits, "--", *command) == "49999995000000\n"
        listed, report = batchjob("jobs"), batchjob("job", "first")
    (line,) = (line.split() for line in listed.splitlines() if " first " in line)
    assert "completed" in line
    assert "COMPLETED" in report
