"""`batchjob logs`: prints the output of a run."""

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator

from batchjob.local_runs import history
from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import STREAMS, OutputLine, Reader, merge_streams
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.times import format_time
from batchjob.runtime.values import integer
from batchjob_cli.client import remote_runs
from batchjob_cli.client.connect import add_window, find_run, run_parser, runs_of_job
from batchjob_cli.client.problems import NotFoundError, files_named
from batchjob_cli.client.table import add_zone

_PAUSE_SECONDS = 0.3
_MAX_PARTS = 160  # of a line, 10 MiB


def run(arguments: list[str]) -> int:
    parser = run_parser("logs", "Prints the output of a run.")
    parser.add_argument(
        "--follow", "-f", action="store_true", help="follow the output until the run ends"
    )
    parser.add_argument(
        "--stream", choices=STREAMS, help="only this stream (default: both, ordered by time)"
    )
    add_window(parser, "lines")
    parser.add_argument("--limit", type=integer, help="only the last N lines")
    parser.add_argument("--timestamps", action="store_true", help="prefix each line with its time")
    add_zone(parser)
    given = parser.parse_args(arguments)
    try:
        return remote_runs.logs(given) if given.server else _print_local(given)
    except NotFoundError as error:
        rows = runs_of_job(given, given.job, None, ("cluster", "jobid", "stdout_path"))
        where = [row["stdout_path"].replace("%j", row["jobid"]) for row in rows]
        if not any(where):
            raise
        text = f"{given.job} is a job of {rows[0]['cluster']}; its output is in {where[0]}"
        raise NotFoundError(text) from error


def _print_local(given: argparse.Namespace) -> int:
    data, chosen = find_run(given)
    directory = data / LOGS / chosen.jobid
    if not directory.is_dir():
        raise SettingsError(f"run {chosen.jobid}: no output was kept, or it has been deleted")
    wanted = [each for each in STREAMS if given.stream in (None, each)]
    # Without a limit of time: at a terminal, a long read delays nobody else, and Ctrl-C ends it.
    readers = [Reader(directory, each, chosen.uid) for each in wanted]
    with files_named():
        _print_output(given, readers, chosen.jobid)
    return 0


def _print_output(given: argparse.Namespace, readers: list[Reader], jobid: str) -> None:
    lines: Iterable[OutputLine] = merge_streams(readers, given.since, given.until)
    if given.limit is not None:
        for reader in readers:
            reader.seek_to_last(given.limit, given.until)
        lines = _last_lines(lines, given.limit)
    open_stream = _print_lines(lines, given, None)
    while given.follow:
        # Checked before reading, so that the last lines are read too.
        running = _is_running(jobid, given.data)
        more = merge_streams(readers, given.since, given.until)
        open_stream = _print_lines(more, given, open_stream)
        if not running or (given.until is not None and time.time() > given.until):
            break
        time.sleep(_PAUSE_SECONDS)


def _last_lines(lines: Iterable[OutputLine], count: int) -> Iterator[OutputLine]:
    """The last lines; a long line stored in parts counts as one, of which the end is kept."""
    kept: deque[deque[OutputLine]] = deque(maxlen=count)
    begun: dict[str, deque[OutputLine]] = {}
    for line in lines:
        if line.stream not in begun:
            begun[line.stream] = deque(maxlen=_MAX_PARTS)
            kept.append(begun[line.stream])
        begun[line.stream].append(line)
        if line.is_complete:
            del begun[line.stream]
    return (line for parts in kept for line in parts)


def _print_lines(
    lines: Iterable[OutputLine], given: argparse.Namespace, open_stream: str | None
) -> str | None:
    """Print lines; `open_stream`, and what is returned: the stream with an incomplete line."""
    out = sys.stdout.buffer
    for line in lines:
        if open_stream not in (None, line.stream):
            out.write(b"\n")
            open_stream = None
        if line.after_gap:
            sys.stdout.flush()
            print(f"batchjob: part of {line.stream} was not kept", file=sys.stderr)
        if given.timestamps and open_stream is None:
            out.write(f"{format_time(line.at, given.zone)} {line.stream} ".encode())
        out.write(line.text + b"\n" * line.is_complete)
        open_stream = None if line.is_complete else line.stream
    out.flush()
    return open_stream


def _is_running(jobid: str, data: str) -> bool:
    try:
        return history.job(jobid, data).state.is_live
    except history.UnknownRun:  # deleted
        return False
