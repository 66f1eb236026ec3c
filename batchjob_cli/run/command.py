"""`batchjob run`: its options, and the start of a run from them."""

import argparse
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from batchjob.local_runs.directory import RUNS, NoDataDirectory, create_directory, data_directory
from batchjob.local_runs.record import Run
from batchjob.runtime.settings import Parser, SettingsError
from batchjob.runtime.times import future_time
from batchjob.runtime.user_files import ForeignFileError
from batchjob.runtime.values import (
    at_least_one,
    duration,
    format_cpu_list,
    parse_cpu_list,
    with_metavar,
)
from batchjob_cli.client import remote_runs
from batchjob_cli.client.connect import add_arguments
from batchjob_cli.run import user_scope
from batchjob_cli.run.defaults import (
    SITE_FILE,
    VARIABLE,
    RemoteLimits,
    RunDefaults,
    RunSpecification,
    effective_time_limit,
    first_record,
    limits_of,
    load_configuration,
    positive,
    positive_size,
    queues_of,
    time_limit_of,
)
from batchjob_cli.run.gpus import RunGpus
from batchjob_cli.run.launch import LAUNCH_FAILED, WRONG_USAGE, RunStartError
from batchjob_cli.run.lifecycle import (
    execute_run,
    page_url,
    print_message,
    record_run,
    wait_for_start,
    wait_reason,
)
from batchjob_cli.run.limits import RunLimits, excess_over_machine
from batchjob_cli.run.queue import PersonLimits, QueuedRun
from batchjob_cli.run.summary import describe_start
from batchjob_cli.run.supervisor import block_signals

_DESCRIPTION = """\
Runs a command as a job of its own: measured, limited, recorded, its output kept.

Its exit status is passed on: the command's own, 128 + n if signal n ended it, 124 if the time
limit did, 127 if the command was not found, 126 if it cannot be executed, 125 if batchjob itself
could not start the run."""

SendMessage = Callable[[str], None]


def run(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    if given.server:
        return remote_runs.start(given, _command_words(given))
    site, remote = load_configuration(given.config_file)
    spec = _build_specification(given, site, remote)
    if any(spec.limits) and spec.cgroup != "never":
        user_scope.enter(spec.detach)
    mask = block_signals()
    if spec.detach:
        return run_detached(lambda send_message: _run_with_messages(spec, mask, send_message))
    return _run_with_messages(spec, mask, lambda _: None)


def _run_with_messages(spec: RunSpecification, mask: set[int], send_message: SendMessage) -> int:
    try:
        status = _run(spec, mask, send_message)
    except RunStartError as error:
        print_message(str(error))
        return error.status
    except OSError as error:
        print_message(f"{error.filename or 'the run'}: {error.strerror}")
        return LAUNCH_FAILED
    # A shell ends its loop only if SIGINT terminates us, as Ctrl-C would.
    if status == 128 + signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _run(spec: RunSpecification, mask: set[int], send_message: SendMessage) -> int:
    jobid = str(uuid.uuid4())
    with contextlib.ExitStack() as stack:
        queued_runs = [*_join_queues(spec, jobid, stack)]
        conditions: list[QueuedRun | RunGpus] = [*queued_runs]
        gpus = None
        if spec.gpus:
            gpus = stack.enter_context(contextlib.closing(RunGpus(spec.gpus, jobid)))
            conditions.append(gpus)
        record: Run | None = first_record(spec, jobid, wait_reason(spec, conditions))
        assert record is not None
        refusals = [each.refusal for each in queued_runs if record.reason and each.refusal]
        if refusals:
            raise RunStartError(refusals[0], WRONG_USAGE)
        with record_run(spec, record):
            if record.reason:
                send_message(_start_message(spec, record))
                if not (spec.quiet or spec.detach):
                    print_message(f"run {jobid} is waiting: {record.reason}")
                record = wait_for_start(spec, record, conditions)
                if record is None:
                    return 128 + signal.SIGTERM
            if gpus:
                spec = spec._replace(gpu_numbers=frozenset(gpu.number for gpu in gpus.gpus))
                os.environ.update(gpus.environment())
            return execute_run(
                spec, record, mask, lambda started: send_message(_start_message(spec, started))
            )


def _join_queues(
    spec: RunSpecification, jobid: str, stack: contextlib.ExitStack
) -> Iterator[QueuedRun]:
    """Join the queues in which runs are counted; other users have their own."""
    for person, limits in spec.queues:
        try:
            runs = create_directory(spec.data, RUNS)
            queued_run = QueuedRun(runs, jobid, person, limits, spec.limits)
            yield stack.enter_context(contextlib.closing(queued_run))
        except ForeignFileError as error:
            print_message(f"max-runs: {error.filename}: {error.strerror}; continuing without")
        except OSError as error:
            reason = spec.no_data or f"{error.filename or spec.data}: {error.strerror}"
            raise RunStartError(f"max-runs: the runs cannot be counted: {reason}") from error


def _start_message(spec: RunSpecification, run: Run) -> str:
    """What is printed about a run in the background: the id on a line of its own, then the rest."""
    at = spec.start_at
    if spec.quiet:
        return run.jobid
    page = page_url(spec, run)
    return "\n".join([run.jobid, describe_start(run, at), *([f"live at {page}"] if page else [])])


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
    add("--cpus", type=positive, help="CPU limit in CPUs, such as 2 or 0.5")
    add("--cpu-list", type=_usable_cpus, help="CPUs to run on, such as 0-3,8")
    add("--memory", type=positive_size, help="memory limit, such as 4G; in bytes without a unit")
    add("--gpus", type=at_least_one,
        help="number of whole GPUs that no other run holds; the run waits for them")  # fmt: skip
    add(
        "--io",
        type=positive_size,
        help="limit for reads and for writes, in bytes per second, on the disk of the working "
        "directory",
    )
    add(
        "--time-limit",
        type=duration,
        help="time limit, such as 90s or 2h; in seconds without a unit",
    )
    add("--grace", type=duration,
        help="time between SIGTERM and SIGKILL at the time limit (default: 10s)")  # fmt: skip
    add("--at", type=future_time, help="start time: 22:30, 2026-04-04T22:30 or +90m")
    add("--detach", action="store_true", help="run in the background and print the run's id")
    add("--cgroup", choices=("auto", "always", "never"), default="auto",
        help="auto: a cgroup if one can be created, else the process tree")  # fmt: skip
    add("--strict", action="store_true",
        help="refuse to start if a limit cannot be applied; otherwise it is left out")  # fmt: skip
    add("--best-effort", action="store_true", help=argparse.SUPPRESS)  # the default
    for hidden in ("--requested-by", "--requested-role"):  # by `batchjob up`: person and role
        add(hidden, default="", help=argparse.SUPPRESS)
    add("--quiet", action="store_true", help="do not print a report at the end")
    add("--no-logs", dest="logs", action="store_false", help="do not keep the output")
    add("--log-size", type=positive_size, default=32 << 20,
        help="maximum size to keep of each stream, compressed (default: 32M)")  # fmt: skip
    add("--config.file", dest="config_file", default="", metavar="FILE",
        help="YAML file with defaults for all runs (default: "
        f"${VARIABLE}, or {SITE_FILE} if it exists)")  # fmt: skip
    add_arguments(parser)
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run")
    return parser


def _command_words(given: argparse.Namespace) -> list[str]:
    command: list[str] = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise SettingsError("expected a command: batchjob run [OPTION ...] -- COMMAND ...")
    return command


def _build_specification(
    given: argparse.Namespace, site: RunDefaults, remote: RemoteLimits
) -> RunSpecification:
    def option_or_default(name: str) -> Any:
        asked = getattr(given, name)
        return getattr(site, name) if asked is None else asked

    data, no_data = Path(os.devnull, "batchjob"), ""  # where nothing can be kept
    try:
        data = data_directory(given.data)
    except NoDataDirectory as error:
        no_data = f"{error.filename}: {error.strerror}"
    limits = RunLimits(
        option_or_default("cpus"), option_or_default("memory"), option_or_default("io")
    )
    if excess := excess_over_machine(limits):
        raise SettingsError(excess)
    time_limit = effective_time_limit(given.time_limit, site)
    queues = [("", PersonLimits(max_runs=site.max_runs))] if site.max_runs else []
    if person := given.requested_by:
        allowed = limits_of(remote, person, given.requested_role)
        time_limit = time_limit_of(person, allowed, given.time_limit, time_limit)
        queues = [*queues_of(person, allowed, limits), *queues]
    return RunSpecification(
        tuple(_command_words(given)),
        data,
        limits,
        given.name,
        time_limit,
        option_or_default("grace"),
        given.at,
        given.cgroup,
        given.strict or any((site.cpus, site.memory, site.io)),
        given.detach,
        given.quiet,
        given.logs,
        given.log_size,
        given.cpu_list or frozenset(),
        tuple(queues),
        person,
        given.gpus or 0,
        no_data,
    )


@with_metavar("LIST")
def _usable_cpus(text: str) -> frozenset[int]:
    """CPUs that this process may use itself; raises ValueError."""
    cpus, usable = parse_cpu_list(text), os.sched_getaffinity(0)
    if missing := cpus - usable:
        raise ValueError(f"CPU {min(missing)} is not usable; usable are {format_cpu_list(usable)}")
    return cpus


def run_detached(work: Callable[[SendMessage], int]) -> int:
    """Do the work in a process of its own; returns after its first message, or its failure.

    The message's first line goes to standard output, everything else to standard error.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _run_in_background(work, writer)
    os.close(writer)
    with os.fdopen(reader) as answer:
        message = answer.read()
    if message:
        first, _, rest = message.partition("\n")
        print(first, flush=True)
        if rest:
            print(f"batchjob: {rest}", file=sys.stderr, flush=True)
        return 0
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _run_in_background(work: Callable[[SendMessage], int], writer: int) -> None:
    status = 125
    try:
        os.setsid()
        sent: list[str] = []
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)

        def send_message(message: str) -> None:
            if not sent:
                os.write(writer, message.encode())
                os.close(writer)
                for number in (1, 2):
                    os.dup2(null, number)
            sent.append(message)

        status = work(send_message)
    finally:
        sys.stderr.flush()
        os._exit(status)
