"""`batchjob logs`: what a run wrote."""

import argparse
import heapq
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator

from batchjob import past
from batchjob.data import LOGS
from batchjob.run_logs import STREAMS, Line, Reader
from batchjob.settings import SettingsError, argument
from batchjob.values import integer
from batchjob_cli.run.choose import one, parser
from batchjob_cli.run.times import past_time, shown

_PAUSE_SECONDS = 0.3


def run(arguments: list[str]) -> int:
    """Print the output of a run. Raises SettingsError."""
    made = parser("logs", "Prints what a run wrote, as it was written.")
    made.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    made.add_argument("--stream", choices=STREAMS, help="only this one (default: both, by time)")
    made.add_argument("--since", **argument(past_time), help="from a time on: 10m (ago), "
                      "22:30, 2026-04-04T22:30")  # fmt: skip
    made.add_argument("--limit", **argument(integer), help="only the last N lines")
    made.add_argument("--timestamps", action="store_true", help="say when each line was written")
    given = made.parse_args(arguments)
    data, chosen = one(given)
    directory = data / LOGS / chosen.jobid
    if not directory.is_dir():
        raise SettingsError(f"run {chosen.jobid}: its output was not kept, or is no longer")
    readers = [Reader(directory, each) for each in STREAMS if given.stream in (None, each)]
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
    lines: Iterable[Line] = _new(readers, given.since)
    if given.limit is not None:
        lines = _last(lines, given.limit)
    printer = _Printer(given.timestamps)
    printer.put(lines)
    while given.follow:
        running = _running(jobid, given.data)  # asked first, so that the end is read after it
        printer.put(_new(readers, given.since))
        if not running:
            break
        time.sleep(_PAUSE_SECONDS)


def _new(readers: list[Reader], since: float | None) -> Iterator[Line]:
    merged = heapq.merge(*(reader.read() for reader in readers), key=lambda line: line.at)
    return (line for line in merged if since is None or line.at >= since)


def _last(lines: Iterable[Line], count: int) -> Iterator[Line]:
    """The last lines; a long one that was kept in parts is one."""
    kept: deque[list[Line]] = deque(maxlen=count)
    begun: dict[str, list[Line]] = {}
    for line in lines:
        if line.stream not in begun:
            begun[line.stream] = []
            kept.append(begun[line.stream])
        begun[line.stream].append(line)
        if line.whole:
            del begun[line.stream]
    return (line for parts in kept for line in parts)


class _Printer:
    def __init__(self, timestamps: bool) -> None:
        self._timestamps = timestamps
        self._within: str | None = None  # the stream whose line is not complete yet

    def put(self, lines: Iterable[Line]) -> None:
        out = sys.stdout.buffer
        for line in lines:
            if self._within not in (None, line.stream):
                out.write(b"\n")
                self._within = None
            if line.after_gap:
                sys.stdout.flush()
                print(f"batchjob: a part of {line.stream} was not kept", file=sys.stderr)
            if self._timestamps and self._within is None:
                out.write(f"{shown(line.at)} {line.stream} ".encode())
            out.write(line.text + b"\n" * line.whole)
            self._within = None if line.whole else line.stream
        out.flush()


def _running(jobid: str, data: str) -> bool:
    try:
        return past.job(jobid, data).state.live
    except past.UnknownRun:  # deleted
        return False
