"""What this process uses while pieces of work run in it, one inside another or side by side.

CPU time of a piece of work is the whole process's and its ended children's as long as no other
piece runs beside it; else it is that of its own thread, the only part that is surely its own, and
unknown where others take turns in that thread (tasks, greenlets).
Peak memory is the process's: the kernel keeps it (VmHWM) and lets us reset it (`5` into
/proc/self/clear_refs, proc(5)); each piece remembers the highest of its time.
"""

import contextlib
import os
import resource
import sys
import threading
from dataclasses import dataclass
from typing import NamedTuple

_KIB = 1024


class ResourceUse(NamedTuple):
    """CPU seconds, bytes. None: not known."""

    user_cpu_seconds: float | None
    system_cpu_seconds: float | None
    peak_memory_bytes: int | None


class _Cpu(NamedTuple):
    user: float
    system: float

    def since(self, before: "_Cpu") -> "_Cpu":
        return _Cpu(max(0.0, self.user - before.user), max(0.0, self.system - before.system))


@dataclass
class Piece:
    """A piece of work that is being done."""

    pid: int
    flow: tuple[int, int]
    thread: int  # the kernel's thread id
    process: _Cpu
    own: _Cpu
    child_peak: int
    peak: int | None = None
    beside: bool = False  # another piece ran at the same time in another thread or task
    mingled: bool = False  # another piece also ran interleaved with it in the same thread


class OwnUsage:
    """Of one process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []

    def begin(self) -> Piece:
        """A piece begins, in the calling thread or task."""
        thread = threading.get_native_id()
        piece = Piece(os.getpid(), _flow(), thread, _process_cpu(), _thread_cpu(), _children_peak())
        with self._lock:
            # After fork(), drop the pieces of the parent process.
            self._pieces = [each for each in self._pieces if each.pid == piece.pid]
            self._note_peak()
            _forget_peak()
            for other in self._pieces:
                if other.flow != piece.flow:
                    other.beside = piece.beside = True
                    if other.thread == piece.thread:
                        other.mingled = piece.mingled = True
            self._pieces.append(piece)
        return piece

    def end(self, piece: Piece, own: tuple[float, float] | None = None) -> ResourceUse:
        """What the piece used. `own`: its CPU seconds, where the caller has measured them."""
        with self._lock:
            self._note_peak()
            if piece in self._pieces:
                self._pieces.remove(piece)
        cpu: _Cpu | None
        if not piece.beside:
            cpu = _process_cpu().since(piece.process)
        elif own is not None:
            cpu = _Cpu(*own)
        else:
            alone = piece.thread == threading.get_native_id() and not piece.mingled
            cpu = _thread_cpu().since(piece.own) if alone else None
        peak = piece.peak
        if not piece.beside and _children_peak() > piece.child_peak:
            peak = max(peak or 0, _children_peak())
        return ResourceUse(cpu and cpu.user, cpu and cpu.system, peak)

    def _note_peak(self) -> None:
        peak = _peak()
        for piece in self._pieces:
            if peak is not None:
                piece.peak = max(peak, piece.peak or 0)


def thread_cpu() -> tuple[float, float]:
    """User and system seconds of the calling thread."""
    return _thread_cpu()


def _flow() -> tuple[int, int]:
    """Which thread (or greenlet), and which task of asyncio, does what comes next."""
    asyncio = sys.modules.get("asyncio")  # not imported: there are no tasks
    try:
        task = None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        task = None
    return threading.get_ident(), 0 if task is None else id(task)


def _thread_cpu() -> _Cpu:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return _Cpu(used.ru_utime, used.ru_stime)


def _process_cpu() -> _Cpu:
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _Cpu(sum(part.ru_utime for part in parts), sum(part.ru_stime for part in parts))


def _children_peak() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _KIB


def _peak() -> int | None:
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * _KIB
    except (OSError, ValueError, IndexError):
        pass
    return None


def _forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb") as file:
        file.write(b"5")
