"""Keeps the sums over each job's processes across restarts of the exporter within a boot.

The usage of ended processes is in no file of the kernel. Prometheus takes a counter that falls for
one that restarted from 0, and counts all of it again. So the sums are written before they are
exposed, and survive a kill as well. How much a process used between the last scan and its end while
no exporter ran is unknown; such processes are counted as read errors.
"""

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TextIO

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.log import LogOnce
from collectors.jobs.processes.kernel_counters import ContinuedCounters, KernelState
from collectors.jobs.processes.proc import ProcessCounters, ProcessTotals
from collectors.jobs.state.job import Job

log = logging.getLogger(__name__)

_FILE = "processes.jsonl"
_COMPACT_BYTES = 1 << 20  # appended since the file was last rewritten


class ProcessLedger:
    """A file to which a line is appended for each change; the last line of a job counts.

    Used by the scanner's thread alone.
    """

    def __init__(self, directory: str, boot: str) -> None:
        """Without a directory or an id of the boot, nothing is kept."""
        self._path = os.path.join(directory, _FILE) if directory and boot else ""
        self._boot = boot
        self._lines: dict[str, str] = self._load() if self._path else {}
        self._file: TextIO | None = None
        self._appended_bytes = 0
        self._once = LogOnce(log)
        self._rewrite(self._lines)

    def key(self, job: Job) -> str:
        """The name of this run of a job: its directory, and the directory's inode."""
        directories = [root.directory for root in job.process_roots()]
        try:
            return f"{min(directories)}:{os.stat(min(directories)).st_ino}" if self._path else ""
        except (OSError, ValueError):
            return ""

    def restore(self, key: str, kernel: KernelState) -> ProcessTotals:
        """The totals of a run; zero if it is new.

        Also sets the helper's counters of the run; those of /proc go on as the helper's.
        """
        line = self._lines.get(key)
        if line is None:
            return ProcessTotals()
        _, ended, shown, known, kernel.io, kernel.sockets = _decode(line)
        if not kernel.io.shown:
            kernel.io.shown = [each or 0.0 for each in shown[2:]]
        return ProcessTotals(ended, ProcessCounters(*shown), known)

    def save(
        self, key: str, totals: ProcessTotals, shown: ProcessCounters, kernel: KernelState
    ) -> None:
        """Write the sums that are about to be exposed."""
        if self._file is None or not key:
            return
        counted = [kernel.io.saved(), kernel.sockets.saved()]
        line = json.dumps([key, totals.ended, shown, totals.known(), counted])
        if line == self._lines.get(key):
            return
        self._lines[key] = line
        try:
            self._appended_bytes += self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            self._fail(error)

    @property
    def is_large(self) -> bool:
        return self._appended_bytes > _COMPACT_BYTES

    def compact(self, keys: Collection[str]) -> None:
        self._rewrite({key: line for key, line in self._lines.items() if key in keys})

    def close(self) -> None:
        """Close the file; nothing is saved afterwards."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _rewrite(self, lines: dict[str, str]) -> None:
        if not self._path:
            return
        self._lines, self._appended_bytes = lines, 0
        self.close()
        try:
            with open(f"{self._path}.new", "w", encoding="utf-8") as file:
                file.write("\n".join((json.dumps(self._boot), *lines.values(), "")))
            Path(f"{self._path}.new").replace(self._path)
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115  # kept open
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """An incomplete file would be believed after a restart."""
        with contextlib.suppress(OSError):
            self.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._once.warning("file", "%s: sums of ended processes will be lost: %s", _FILE, error)

    def _load(self) -> dict[str, str]:
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                boot, *lines = file.read().splitlines() or [""]
            return dict(_parse(lines)) if boot == json.dumps(self._boot) else {}
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("%s: sums of ended processes start from zero: %s", self._path, error)
            return {}


def _parse(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The lines of existing directories, by key; the last line may be incomplete."""
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            key, *_ = _decode(line)
            path, _, inode = key.rpartition(":")
            if os.path.exists(path) and inode.isdigit():
                yield key, line


def _decode(line: str) -> tuple[Any, ...]:
    """The parts of a line; raises ValueError, TypeError and OverflowError."""
    key, ended, shown, (number, youngest), *counted = parse_json(line)
    if not len(ended) == len(shown) == len(ProcessCounters._fields):
        raise ValueError("expected as many sums as there are counters")
    return (
        str(key),
        tuple(map(float, ended)),
        tuple(None if each is None else float(each) for each in shown),
        (int(number), float(youngest)),
        # An exporter without the helper has kept no counters of it.
        *map(ContinuedCounters.from_saved, counted[0] if counted else [("", (), ())] * 2),
    )
