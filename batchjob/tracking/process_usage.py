"""Measures what this process uses while pieces of work run in it, nested or concurrently.

The CPU time of a piece of work is that of the whole process and its ended children as long as no
other piece runs concurrently; else that of its own thread, or unknown if pieces are interleaved in
that thread (tasks, greenlets).
Peak memory is the process's: the kernel keeps it (VmHWM) and lets us reset it (`5` into
/proc/self/clear_refs, proc(5)); each piece keeps the maximum while it ran.
"""

import contextlib
import os
import resource
import sys
import threading
from dataclasses import dataclass

_KIB = 1024

ResourceUse = tuple[float | None, float | None, int | None]
"""User and system CPU seconds, and the bytes of the memory peak. None: not known."""
_CpuTime = tuple[float, float]
"""User and system seconds."""


@dataclass
class UsageMeasurement:
    pid: int
    context: tuple[int, int]  # the thread and task that runs it
    thread: int  # the kernel's thread id
    process_cpu_at_start: _CpuTime
    thread_cpu_at_start: _CpuTime
    children_peak_bytes: int
    peak_bytes: int | None = None
    concurrent: bool = False  # another piece ran at the same time in another thread or task
    interleaved: bool = False  # another piece also ran interleaved with it in the same thread


class ProcessUsage:
    """Measures the pieces of work of one process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[UsageMeasurement] = []

    def begin(self) -> UsageMeasurement:
        """Start to measure a piece of work in the calling thread or task."""
        thread = threading.get_native_id()
        measurement = UsageMeasurement(
            os.getpid(),
            _current_context(),
            thread,
            _process_cpu(),
            thread_cpu(),
            _children_peak_memory_bytes(),
        )
        with self._lock:
            # After fork(), drop the pieces of the parent process.
            self._running = [each for each in self._running if each.pid == measurement.pid]
            self._update_peaks()
            _reset_peak_memory()
            for other in self._running:
                if other.context != measurement.context:
                    other.concurrent = measurement.concurrent = True
                    if other.thread == measurement.thread:
                        other.interleaved = measurement.interleaved = True
            self._running.append(measurement)
        return measurement

    def end(self, measurement: UsageMeasurement, own_cpu: _CpuTime | None = None) -> ResourceUse:
        """What the piece used. `own_cpu`: its CPU seconds, if the caller has measured them."""
        with self._lock:
            self._update_peaks()
            if measurement in self._running:
                self._running.remove(measurement)
        cpu: _CpuTime | None
        if not measurement.concurrent:
            cpu = _since(measurement.process_cpu_at_start, _process_cpu())
        elif own_cpu is not None:
            cpu = own_cpu
        else:
            alone = measurement.thread == threading.get_native_id() and not measurement.interleaved
            cpu = _since(measurement.thread_cpu_at_start, thread_cpu()) if alone else None
        peak_bytes = measurement.peak_bytes
        children_peak_bytes = _children_peak_memory_bytes()
        if not measurement.concurrent and children_peak_bytes > measurement.children_peak_bytes:
            peak_bytes = max(peak_bytes or 0, children_peak_bytes)
        user, system = cpu or (None, None)
        return user, system, peak_bytes

    def _update_peaks(self) -> None:
        peak_bytes = read_peak_memory_bytes()
        for measurement in self._running:
            if peak_bytes is not None:
                measurement.peak_bytes = max(peak_bytes, measurement.peak_bytes or 0)


def thread_cpu() -> _CpuTime:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime, used.ru_stime


def _current_context() -> tuple[int, int]:
    """The thread (or greenlet) and the asyncio task that is running."""
    asyncio = sys.modules.get("asyncio")  # not imported: there are no tasks
    try:
        task = None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        task = None
    return threading.get_ident(), 0 if task is None else id(task)


def _process_cpu() -> _CpuTime:
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime for part in parts), sum(part.ru_stime for part in parts)


def _since(before: _CpuTime, now: _CpuTime) -> _CpuTime:
    return max(0.0, now[0] - before[0]), max(0.0, now[1] - before[1])


def _children_peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _KIB


def read_peak_memory_bytes() -> int | None:
    """VmHWM: the peak of this process's memory since execve(2), or since it was reset."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * _KIB
    except (OSError, ValueError, IndexError):
        pass
    return None


def _reset_peak_memory() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb") as file:
        file.write(b"5")
