"""Processes of a site: whether they run and answer, and what they take."""

import contextlib
import os
import re
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.helpers.waiting import until

PATIENCE_SECONDS = 1800.0  # per step of the start; a process that ends is reported immediately


def get(url: str, **headers: str) -> bytes:
    """The body of an answer."""
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def wait(condition: Callable[[], bool], what: str, pids: Mapping[str, int], folder: Path) -> None:
    """Until it is so; AssertionError with the last words of a part that has ended meanwhile."""

    def met() -> bool:
        for name, pid in pids.items():
            log = folder / f"{name}.log"
            words = log.read_text()[-2000:] if log.exists() else ""
            assert runs(pid), f"{what}: {name} has ended: {words}"
        # While a store ingests its first series, it may not answer.
        with contextlib.suppress(OSError):
            return condition()
        return False

    until(met, f"{what}: {folder}", PATIENCE_SECONDS, 0.5)


def runs(pid: int) -> bool:
    """Whether this child of ours has not ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


def cpu_seconds(pid: int) -> float:
    """Of a process, its children that run, and those that have ended."""
    ticks = 0
    for process in (pid, *children(pid)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11 : 15 if process == pid else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


def memory_bytes(pid: int) -> int:
    """Proportional, so that what processes share counts once."""
    total = 0
    for process in (pid, *children(pid)):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
            total += 1024 * int(match[1]) if match else 0
    return total
