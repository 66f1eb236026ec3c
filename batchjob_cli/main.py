"""The command `batchjob`, whose sub-commands are modules of their own."""

import atexit
import gc
import importlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from batchjob import __version__
from batchjob.local_runs.directory import NoDataDirectory
from batchjob.runtime.log import escape_unprintable
from batchjob.runtime.output import missing_library_message, run_with_stdout
from batchjob.runtime.settings import SettingsError, suggest_nearest
from batchjob_cli.client.problems import INTERRUPTED, USAGE, exit_status

_OBJECTS_BETWEEN_COLLECTIONS = 50_000


class Command(NamedTuple):
    """A sub-command; its module has `run(arguments) -> exit status`."""

    name: str
    module: str
    description: str
    extra: str = "server"  # in pyproject.toml; needed in addition to the exporter's libraries
    function: str = "run"

    def load(self) -> Callable[[list[str]], int]:
        """Import its module; raises ModuleNotFoundError if its libraries are not installed."""
        run: Callable[[list[str]], int] = getattr(
            importlib.import_module(self.module), self.function
        )
        return run


COMMANDS = (
    Command(
        "up",
        "batchjob_cli.up.command",
        "Run all parts of batchjob on this machine, with web pages.",
    ),
    Command("run", "batchjob_cli.run.command", "Run a command as a job: measured and recorded."),
    Command("jobs", "batchjob_cli.jobs", "List jobs."),
    Command("job", "batchjob_cli.job", "Show the report of a job, with advice."),
    Command("seff", "batchjob_cli.seff", "Show the efficiency of a job as Slurm's seff does."),
    Command("epilog", "batchjob_cli.epilog", "Show what this node has measured of a job so far."),
    Command("mail", "batchjob_cli.mail", "Send a mail of Slurm with the report of its job."),
    Command("notify", "batchjob_cli.notify", "Choose what you are told of your jobs, and how."),
    Command("stats", "batchjob_cli.stats", "Show totals and success rates."),
    Command(
        "metrics", "batchjob_cli.metrics", "Show a job's measurements over time and follow them."
    ),
    Command("logs", "batchjob_cli.logs", "Print the output of a run."),
    Command("stop", "batchjob_cli.stop", "End a run."),
    Command("cancel", "batchjob_cli.stop", "Cancel a run that has not started.", function="cancel"),
    Command(
        "delete",
        "batchjob_cli.stop",
        "Delete a run's record, samples and output.",
        function="delete",
    ),
    Command(
        "doctor",
        "batchjob_cli.doctor.command",
        "Check what this node provides and what is missing.",
    ),
    Command(
        "top",
        "batchjob_cli.top",
        "Show running and pending jobs, updated every few seconds.",
        "top",
    ),
    Command(
        "completion", "batchjob_cli.completion", "Print a completion script for a shell.", "shell"
    ),
    Command("manual", "batchjob_cli.manuals", "Print a manual page.", "shell", "manual"),
)


_NOW = Command("batchjob", "batchjob_cli.now", "Show your jobs at present.")


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    # Libraries create many objects that stay: looking for garbage among them, and again at the end
    # of the process, takes a third of the time of a list.
    if arguments is None:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        atexit.register(gc.freeze)
    try:
        return run_with_stdout("batchjob", lambda: _dispatch(given))
    except SettingsError as error:
        print(f"batchjob: {escape_unprintable(str(error))}", file=sys.stderr)
        return exit_status(error)
    except NoDataDirectory as error:
        print(
            f"batchjob: {escape_unprintable(f'{error.filename}: {error.strerror}')}",
            file=sys.stderr,
        )
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(given: list[str]) -> int:
    if not given:
        return _execute(_NOW, given)
    first = given[0]
    if first in ("-h", "--help"):
        print(_usage())
        return 0
    if first == "--version":
        print(f"batchjob {__version__}")
        return 0
    for command in COMMANDS:
        if command.name == first:
            return _execute(command, given[1:])
    known = [command.name for command in COMMANDS]
    hint = suggest_nearest(first, known) or f"; expected one of {', '.join(known)}"
    raise SettingsError(f"unknown command {first}{hint}")


def _execute(command: Command, arguments: list[str]) -> int:
    """A node may lack the libraries of servers, which is not an error of the command."""
    # `run` is followed by a command with its own arguments, `mail` by the name of any job.
    if command.name not in ("run", "mail"):
        _check_text(arguments)
    try:
        return command.load()(arguments)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{command.name}: {missing_library_message(error, command.extra)}"
        ) from error


def _check_text(arguments: list[str]) -> None:
    for each in arguments:
        try:
            each.encode()
        except UnicodeEncodeError:  # surrogates, which stand for bytes that are not UTF-8
            raise SettingsError(f"{each}: expected UTF-8") from None


def _usage() -> str:
    width = max(len(command.name) for command in COMMANDS)
    rows = [f"  {each.name:<{width}}  {each.description}" for each in COMMANDS]
    usage = "usage: batchjob [COMMAND ...]\n\nWithout a command, it shows your jobs at present.\n"
    return "\n".join([usage, *rows, "", "See `batchjob COMMAND --help`."])
