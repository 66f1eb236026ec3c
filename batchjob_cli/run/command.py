"""`batchjob run`: its options, and the start of a run from them."""

import argparse
import contextlib
import os
import signal
import uuid
from typing import Any

from batchjob.local_runs.directory import RUNS, data_directory, prepare
from batchjob.local_runs.record import Run
from batchjob.runtime.settings import Parser, SettingsError, argument
from batchjob.runtime.times import coming_time
from batchjob.runtime.values import duration
from batchjob_cli.client import remote_runs
from batchjob_cli.client.connect import add_arguments
from batchjob_cli.client.running_up import running_up
from batchjob_cli.run import life
from batchjob_cli.run.cpu_list import cpu_list
from batchjob_cli.run.defaults import (
    SITE_FILE,
    VARIABLE,
    RunDefaults,
    configuration,
    positive,
    positive_size,
    time_limit,
)
from batchjob_cli.run.detach import Tell, detached
from batchjob_cli.run.launch import OUR_FAULT
from batchjob_cli.run.lifecycle import (
    Failed,
    perform,
    recorded,
    say,
    wait_for_start,
    why_it_waits,
)
from batchjob_cli.run.limits import RunLimits
from batchjob_cli.run.queue import ForeignQueueError, Turn
from batchjob_cli.run.request import RunSpecification, first_record
from batchjob_cli.run.summary import begun
from batchjob_cli.run.supervisor import block_signals

_DESCRIPTION = """\
Runs a command as a job of its own: measured, limited, recorded, its output kept.

Its exit status is passed on: the command's own, 128 + n if signal n ended it, 124 if the time
limit did, 127 if the command was not found, 126 if it cannot be executed, 125 if batchjob itself
could not start the run."""


def run(arguments: list[str]) -> int:
    """Run a command; its exit status. Raises SettingsError."""
    given = _parser().parse_args(arguments)
    if given.server:
        return remote_runs.start(given, _command(given))
    site = configuration(given.config_file)
    order = _order(given, site.limits)
    life.set_up(site.log)
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
    # A shell's loop only ends if we die of SIGINT, as if by Ctrl-C.
    if status == 128 + signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _run(order: RunSpecification, mask: set[int], tell: Tell) -> int:
    jobid = str(uuid.uuid4())
    with contextlib.ExitStack() as stack:
        turn = _turn(order, jobid, stack)
        record: Run | None = first_record(order, jobid, why_it_waits(order, turn))
        assert record is not None
        with recorded(order, record):
            if record.reason:
                tell(_word(order, record))
                if not (order.quiet or order.detach):
                    say(f"run {jobid} is waiting: {record.reason}")
                record = wait_for_start(order, record, turn)
                if record is None:
                    return 128 + signal.SIGTERM
            elif not (order.quiet or order.detach) and (page := _page(order, record)):
                say(f"run {jobid} is live at {page}")
            return perform(order, record, mask, lambda begun: tell(_word(order, begun)))


def _turn(order: RunSpecification, jobid: str, stack: contextlib.ExitStack) -> Turn | None:
    """A place in the user's queue. Other users do not delay a run."""
    if not order.max_runs:
        return None
    try:
        return stack.enter_context(Turn(prepare(order.data, RUNS), jobid, order.max_runs))
    except ForeignQueueError as error:
        say(f"max-runs: {error}; continuing without")
        return None


def _word(order: RunSpecification, run: Run) -> str:
    """What is printed about a run in the background: the id on a line of its own, then the rest."""
    at = order.start_at
    if order.quiet:
        return run.jobid
    page = _page(order, run)
    return "\n".join([run.jobid, begun(run, at), *([f"live at {page}"] if page else [])])


def _page(order: RunSpecification, run: Run) -> str:
    """The page of the run; "" while no `batchjob up` serves its directory."""
    up = running_up(order.data)
    return f"{up.url}/jobs/{run.jobid}" if up else ""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="batchjob run",
        description=_DESCRIPTION,
        usage="batchjob run [OPTION ...] [--] COMMAND [ARGUMENT ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", default="", help="name of the run in lists and reports")
    add("--cpus", **argument(positive), help="CPU limit in CPUs, such as 2 or 0.5")
    add("--cpu-list", **argument(cpu_list), help="CPUs to run on, such as 0-3,8")
    add(
        "--memory",
        **argument(positive_size),
        help="memory limit, such as 4G; in bytes without a unit",
    )
    add(
        "--io",
        **argument(positive_size),
        help="limit for reads and for writes, in bytes per second, on the disk of the working "
        "directory",
    )
    add(
        "--time-limit",
        **argument(duration),
        help="time limit, such as 90s or 2h; in seconds without a unit",
    )
    add("--grace", **argument(duration),
        help="time between SIGTERM and SIGKILL at the time limit (default: 10s)")  # fmt: skip
    add("--at", **argument(coming_time), help="start time: 22:30, 2026-04-04T22:30 or +90m")
    add("--detach", action="store_true", help="run in the background and print the run's id")
    add("--cgroup", choices=("auto", "always", "never"), default="auto",
        help="auto: a cgroup if one can be created, else the process tree")  # fmt: skip
    add(
        "--best-effort", action="store_true", help="start the run even if a limit cannot be applied"
    )
    add("--quiet", action="store_true", help="do not print a report at the end")
    add("--no-logs", dest="logs", action="store_false", help="do not keep the output")
    add("--log-size", **argument(positive_size), default=32 << 20,
        help="maximum size to keep of each stream, compressed (default: 32M)")  # fmt: skip
    add("--config.file", dest="config_file", default="", metavar="FILE",
        help="YAML file with defaults for all runs (default: "
        f"${VARIABLE}, or {SITE_FILE} if it exists)")  # fmt: skip
    add_arguments(parser)
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run")
    return parser


def _command(given: argparse.Namespace) -> list[str]:
    command: list[str] = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise SettingsError("expected a command: batchjob run [OPTION ...] -- COMMAND ...")
    return command


def _order(given: argparse.Namespace, site: RunDefaults) -> RunSpecification:
    def chosen(name: str) -> Any:
        asked = getattr(given, name)
        return getattr(site, name) if asked is None else asked

    return RunSpecification(
        tuple(_command(given)),
        data_directory(given.data),
        RunLimits(chosen("cpus"), chosen("memory"), chosen("io")),
        given.name,
        time_limit(given.time_limit, site),
        chosen("grace"),
        given.at,
        given.cgroup,
        given.best_effort,
        given.detach,
        given.quiet,
        given.logs,
        given.log_size,
        given.cpu_list or frozenset(),
        site.max_runs,
    )
