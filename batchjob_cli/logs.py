"""`batchjob logs`: prints the output of a run."""

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import tzinfo

from batchjob.local_runs import history
from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import STREAMS, OutputLine, Reader, merged
from batchjob.runtime.settings import SettingsError, argument
from batchjob.runtime.times import past_time, time_in_words
from batchjob.runtime.values import integer
from batchjob_cli.client import remote_runs
from batchjob_cli.client.selection import one, parser
from batchjob_cli.client.table import add_zone

_PAUSE_SECONDS = 0.3


def run(arguments: list[str]) -> int:
    """Print the output of a run. Raises SettingsError."""
    made = parser("logs", "Prints the output of a run.")
    made.add_argument(
        "--follow", "-f", action="store_true", help="follow the output until the run ends"
    )
    made.add_argument(
        "--stream", choices=STREAMS, help="only this stream (default: both, ordered by time)"
    )
    made.add_argument(
        "--since",
        **argument(past_time),
        help="only lines after this time: 10m (ago), 22:30, 2026-04-04T22:30",
    )
    made.add_argument("--until", **argument(past_time), help="only up to this time")
    made.add_argument("--limit", **argument(integer), help="only the last N lines")
    made.add_argument("--timestamps", action="store_true", help="prefix each line with its time")
    add_zone(made)
    given = made.parse_args(arguments)
    if given.server:
        return remote_runs.logs(given)
    data, chosen = one(given)
    directory = data / LOGS / chosen.jobid
    if not directory.is_dir():
        raise SettingsError(f"run {chosen.jobid}: no output was kept, or it has been deleted")
    wanted = [each for each in STREAMS if given.stream in (None, each)]
    readers = [Reader(directory, each, chosen.uid) for each in wanted]
    try:
        _print(given, readers, chosen.jobid)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
    return 0


def _print(given: argparse.Namespace, readers: list[Reader], jobid: str) -> None:
    lines: Iterable[OutputLine] = merged(readers, given.since, given.until)
    if given.limit is not None:
        lines = _last(lines, given.limit)
    printer = _Printer(given.timestamps, given.zone)
    printer.put(lines)
    while given.follow:
        running = _running(jobid, given.data)  # check before reading, so that the end is read too
        printer.put(merged(readers, given.since, given.until))
        if not running or (given.until is not None and time.time() > given.until):
            break
        time.sleep(_PAUSE_SECONDS)


def _last(lines: Iterable[OutputLine], count: int) -> Iterator[OutputLine]:
    """The last lines; a long line stored in parts counts as one."""
    kept: deque[list[OutputLine]] = deque(maxlen=count)
    begun: dict[str, list[OutputLine]] = {}
    for line in lines:
        if line.stream not in begun:
            begun[line.stream] = []
            kept.append(begun[line.stream])
        begun[line.stream].append(line)
        if line.whole:
            del begun[line.stream]
    return (line for parts in kept for line in parts)


class _Printer:
    def __init__(self, timestamps: bool, zone: tzinfo | None) -> None:
        self._timestamps = timestamps
        self._zone = zone
        self._within: str | None = None  # the stream with an incomplete line

    def put(self, lines: Iterable[OutputLine]) -> None:
        out = sys.stdout.buffer
        for line in lines:
            if self._within not in (None, line.stream):
                out.write(b"\n")
                self._within = None
            if line.after_gap:
                sys.stdout.flush()
                print(f"batchjob: part of {line.stream} was not kept", file=sys.stderr)
            if self._timestamps and self._within is None:
                out.write(f"{time_in_words(line.at, self._zone)} {line.stream} ".encode())
            out.write(line.text + b"\n" * line.whole)
            self._within = None if line.whole else line.stream
        out.flush()


def _running(jobid: str, data: str) -> bool:
    try:
        return history.job(jobid, data).state.live
    except history.UnknownRun:  # deleted
        return False
