"""`batchjob run`: options, and the way from them to a run."""

import argparse
import os
import signal

from batchjob.local_runs.directory import data_directory
from batchjob.local_runs.record import Run
from batchjob.runtime.settings import Parser, SettingsError, argument
from batchjob.runtime.times import start_time, time_in_words
from batchjob.runtime.values import called, duration, size
from batchjob_cli.client import remote_runs
from batchjob_cli.client.connect import add_arguments
from batchjob_cli.run.detach import Tell, detached
from batchjob_cli.run.launch import OUR_FAULT
from batchjob_cli.run.lifecycle import Failed, perform, recorded, say, wait_for_start
from batchjob_cli.run.limits import RunLimits
from batchjob_cli.run.request import RunSpecification, first_record
from batchjob_cli.run.summary import begun
from batchjob_cli.run.supervisor import block_signals

_DESCRIPTION = """\
Runs a command as a job of its own: measured, limited, recorded, its output kept.

Its exit status is passed on: the command's own, 128 + n if signal n ended it, 124 if the time
limit did, 127 if the command was not found, 126 if it cannot be executed, 125 if batchjob itself
could not begin the run."""


def run(arguments: list[str]) -> int:
    """Run a command; its exit status. Raises SettingsError."""
    given = _parser().parse_args(arguments)
    if given.server:
        return remote_runs.start(given, _command(given))
    order = _order(given)
    mask = block_signals()
    if order.detach:
        return detached(lambda tell: _guarded(order, mask, tell))
    return _guarded(order, mask, lambda _: None)


def _guarded(order: RunSpecification, mask: set[int], tell: Tell) -> int:
    try:
        status = _run(order, mask, tell)
    except Failed as error:
        say(str(error))
        return error.status
    except OSError as error:
        say(f"{error.filename or 'the run'}: {error.strerror}")
        return OUR_FAULT
    if status == 128 + signal.SIGINT:  # a shell's loop ends only if we end as its Ctrl-C would
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _run(order: RunSpecification, mask: set[int], tell: Tell) -> int:
    record: Run | None = first_record(order)
    assert record is not None
    jobid = record.jobid
    with recorded(order, record):
        if order.start_at is not None:
            tell(_word(order, record))
            if not (order.quiet or order.detach):
                say(f"run {jobid} starts at {time_in_words(order.start_at)}")
            record = wait_for_start(order, record)
            if record is None:
                return 128 + signal.SIGTERM
        return perform(order, record, mask, lambda begun: tell(_word(order, begun)))


def _word(order: RunSpecification, run: Run) -> str:
    """What is told of a run in the background: the id on a line of its own, then the rest."""
    at = order.start_at
    return run.jobid if order.quiet else f"{run.jobid}\n{begun(run, at)}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="batchjob run",
        description=_DESCRIPTION,
        usage="batchjob run [OPTION ...] [--] COMMAND [ARGUMENT ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", default="", help="what the run is called, in lists and reports")
    add("--cpus", **argument(_positive), help="at most so many CPUs' time, such as 2 or 0.5")
    add("--memory", **argument(_size), help="at most so much memory, such as 4G")
    add("--io", **argument(_size), help="read at most so many bytes a second, and write "
        "as many, on the disk of the working directory")  # fmt: skip
    add("--time-limit", **argument(duration), help="end it after, such as 90s or 2h")
    add("--grace", **argument(duration), default=10.0,
        help="from SIGTERM to SIGKILL at the time limit (default: 10s)")  # fmt: skip
    add("--at", **argument(start_time), help="start at 22:30, 2026-04-04T22:30 or +90m")
    add("--detach", action="store_true", help="go to the background; prints the run's id")
    add("--cgroup", choices=("auto", "always", "never"), default="auto",
        help="auto: a cgroup if one can be made, else the process tree")  # fmt: skip
    add("--best-effort", action="store_true", help="go on without limits that cannot be applied")
    add("--quiet", action="store_true", help="no report at the end")
    add("--no-logs", dest="logs", action="store_false", help="do not keep the output")
    add("--log-size", **argument(_size), default=32 << 20,
        help="so much of each stream is kept, compressed (default: 32M)")  # fmt: skip
    add_arguments(parser)
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    return parser


def _command(given: argparse.Namespace) -> list[str]:
    command: list[str] = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise SettingsError("expected a command: batchjob run [OPTION ...] -- COMMAND ...")
    return command


def _order(given: argparse.Namespace) -> RunSpecification:
    return RunSpecification(
        tuple(_command(given)),
        data_directory(given.data),
        RunLimits(given.cpus, given.memory, given.io),
        given.name,
        given.time_limit,
        given.grace,
        given.at,
        given.cgroup,
        given.best_effort,
        given.detach,
        given.quiet,
        given.logs,
        given.log_size,
    )


@called("N")
def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ValueError(f"expected a number above 0, got {text!r}")
    return value


@called("SIZE")
def _size(text: str) -> int:
    if parsed := size(text):
        return parsed
    raise ValueError("expected a size above 0")
