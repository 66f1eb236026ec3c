"""What a process costs: CPU time, memory, wake-ups, system calls, and which files it reads."""

import contextlib
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads a process has had, to the nanosecond.

    The clock id is the kernel's for another process (linux/posix-timers.h, CPUCLOCK_SCHED).
    """
    return time.clock_gettime((~pid << 3) | 2)


def resident_bytes(pid: int, peak: bool = False) -> int:
    """VmRSS, or VmHWM, of /proc/<pid>/status."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"^{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status, re.MULTILINE)
    assert match
    return int(match[1]) * 1024


def wake_ups(pid: int) -> int:
    """How often its threads were put on a CPU after they had waited for something."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        match = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)
        assert match
        total += int(match[1])
    return total


class Trace(NamedTuple):
    """System calls of a process while something was done."""

    calls: Counter[str]
    files: Counter[str]  # path → number of reads
    bytes: int  # read from those files


@contextlib.contextmanager
def _attached(pid: int, out: Path) -> Iterator[None]:
    argv = ["strace", "-f", "-y", "-qq", "-s", "0", "-o", str(out), "-p", str(pid)]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 10
        while _tracer(pid) == 0:
            assert time.monotonic() < deadline, "strace did not attach"
            time.sleep(0.05)
        time.sleep(0.5)  # until it is attached to the other threads
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _tracer(pid: int) -> int:
    match = re.search(r"^TracerPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(match[1]) if match else 0


_CALL = re.compile(r"^\d+ +(\w+)\((?:\d+<(?P<path>[^>]*)>)?")
_RESUMED = re.compile(r"^\d+ +<\.\.\. (\w+) resumed>")
_ANSWER = re.compile(r"= (\d+)$")
_READS = ("read", "pread64", "readv", "preadv")


def trace(pid: int, action: Callable[[], object]) -> Trace:
    """Do something, and see what the process does meanwhile (needs strace)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "strace"
        with _attached(pid, out):
            action()
        return _counted(out.read_text().splitlines())


def _counted(lines: list[str]) -> Trace:
    calls: Counter[str] = Counter()
    files: Counter[str] = Counter()
    size = 0
    unfinished: dict[str, str] = {}  # thread → path of its unfinished read
    for line in lines:
        thread = line.split(" ", 1)[0]
        call, resumed = _CALL.match(line), _RESUMED.match(line)
        path = ""
        if call:
            calls[call[1]] += 1
            if call[1] in _READS and (call["path"] or "").startswith("/"):
                path = call["path"]
                files[path] += 1
            if line.endswith("<unfinished ...>"):
                unfinished[thread] = path
                continue
        elif resumed:
            path = unfinished.pop(thread, "")
        answer = _ANSWER.search(line)
        if path and answer:
            size += int(answer[1])
    return Trace(calls, files, size)
