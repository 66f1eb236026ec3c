"""Standard output that is closed or full, or whose reader leaves early."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from batchjob.runtime.output import run_with_stdout
def lines():
    print("x" * 100_000)
    return 3
sys.exit(run_with_stdout("program", lines))
"""
HELP = """
import sys
from batchjob_cli.main import main
sys.exit(main(["jobs", "--help"]))
"""


def run_in_shell(program, redirection):
    shell = ["bash", "-c", f'"$0" -c "$1" {redirection}; exit ${{PIPESTATUS[0]}}', sys.executable]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    completed = subprocess.run([*shell, program], env=environment, capture_output=True, text=True)
    return completed.returncode, completed.stderr


@pytest.mark.parametrize(
    ("redirection", "status"),
    [(">/dev/null", 3), (">&-", 3), ("| true", 0), ("| head -c 1 >/dev/null", 0)],
)
def test_closed_stdout_is_not_an_error(redirection, status):
    assert run_in_shell(PROGRAM, redirection) == (status, "")


@pytest.mark.parametrize("program", [PROGRAM, HELP])
def test_full_disk_is_reported_in_one_line(program):
    status, error = run_in_shell(program, ">/dev/full")
    assert status == 1
    assert error.endswith(": standard output: No space left on device\n")
    assert error.count("\n") == 1
