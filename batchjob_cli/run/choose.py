"""The run that somebody means, for the commands that take an id."""

import argparse
from pathlib import Path

from batchjob import past
from batchjob.data import data_directory
from batchjob.runs import Run
from batchjob.settings import Parser, SettingsError


def parser(name: str, description: str, job: str | None = None) -> argparse.ArgumentParser:
    """A parser with `--data`, and the argument JOB (`job`: its number of times)."""
    made = Parser(prog=f"batchjob {name}", description=description, allow_abbrev=False)
    made.add_argument("job", nargs=job, metavar="JOB", help="a run's id, the beginning of it, "
                      "or its name")  # fmt: skip
    made.add_argument("--data", default="", metavar="DIRECTORY", help="data directory (default: "
                      "$BATCHJOB_DATA or ~/.local/state/batchjob)")  # fmt: skip
    return made


def one(given: argparse.Namespace) -> tuple[Path, Run]:
    """The data directory and the run; raises SettingsError."""
    try:
        return data_directory(given.data), past.job(given.job, given.data)
    except past.UnknownRun as error:
        raise SettingsError(str(error)) from error
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
