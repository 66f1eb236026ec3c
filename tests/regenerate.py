"""Regenerate every generated file: `python -m tests.regenerate`.

Options, metrics and tables in docs/, dashboards, and the golden files of tests. Read
the difference afterwards: it is what users will notice. The recorded machines are unpacked with
their owners, so only root regenerates their golden files. The lists of locked packages are not
among them: `python -m deploy.packages.lock` asks PyPI.
"""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
GENERATORS = (
    "tests.generated_pages",
    "batchjob_cli.manuals",
    "grafana.generate",
    "tests.documented_blocks",
    "tests.tables_page",
    "tests.help_pages",
)
GOLDEN_TESTS = ("tests/test_contracts.py", "tests/collectors/jobs/test_golden.py")
UPDATE_VARIABLE = "BATCHJOB_UPDATE_GOLDEN"


def main() -> int:
    """Run all generators; returns the exit status of the first that fails."""
    environment = {**os.environ, UPDATE_VARIABLE: "1"}
    commands = [
        *([sys.executable, "-m", module] for module in GENERATORS),
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *GOLDEN_TESTS],
    ]
    for command in commands:
        print(" ".join(command[1:]), flush=True)
        status = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
