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


def status_and_error(program, redirected):
    shell = ["bash", "-c", f'"$0" -c "$1" {redirected}; exit ${{PIPESTATUS[0]}}', sys.executable]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([*shell, program], env=buffered, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("redirected", "status"),
    [(">/dev/null", 3), (">&-", 3), ("| true", 0), ("| head -c 1 >/dev/null", 0)],
)
def test_nobody_reads_it(redirected, status):
    assert status_and_error(PROGRAM, redirected) == (status, "")


@pytest.mark.parametrize("program", [PROGRAM, HELP])
def test_a_full_disk(program):
    status, error = status_and_error(program, ">/dev/full")
    assert status == 1
    assert error.endswith(": standard output: No space left on device\n")
    assert error.count("\n") == 1
