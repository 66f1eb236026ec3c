"""Finds the run meant by an argument of a command."""

import argparse
from pathlib import Path

from batchjob.local_runs import history
from batchjob.local_runs.directory import data_directory
from batchjob.local_runs.record import Run
from batchjob.runtime.settings import Parser, SettingsError
from batchjob_cli.client.connect import add_arguments
from batchjob_cli.client.problems import NotFoundError


def run_parser(name: str, description: str, nargs: str | None = None) -> argparse.ArgumentParser:
    """A parser with the server options and the argument JOB (`job`: how many)."""
    parser = Parser(prog=f"batchjob {name}", description=description, allow_abbrev=False)
    parser.add_argument(
        "job", nargs=nargs, metavar="JOB", help="id of a run, a prefix of it, or its name"
    )
    add_arguments(parser)
    return parser


def find_run(given: argparse.Namespace) -> tuple[Path, Run]:
    """The data directory and the run; raises SettingsError."""
    try:
        return data_directory(given.data), history.job(given.job, given.data)
    except history.UnknownRun as error:
        raise NotFoundError(str(error)) from error
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
