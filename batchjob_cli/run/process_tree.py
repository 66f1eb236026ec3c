"""The processes of a run, followed from parent to child.

We are their subreaper, so no descendant is lost: orphans become our children. The usage of a
process, including its waited-for children, is known when we wait for it (wait4(2), and
/proc/<pid>/io while it is a zombie). Memory has no such total, so it is sampled.
"""

import contextlib
import os
import resource
import signal
from collections.abc import Callable

from batchjob.quantities import job
from batchjob.quantities.quantity import Quantity
from batchjob.tracking.process_usage import read_peak_memory_bytes

_KIB = 1024
_USER, _SYSTEM, _OF_CHILDREN, _THREADS, _RESIDENT = 11, 12, 2, 17, 21  # places in _read_stat()
_CHILDREN_FILE = "/proc/thread-self/children"  # exists with CONFIG_PROC_CHILDREN


class ProcessTree:
    """Our descendants, all of which are the run's processes, and the usage of the ended ones.

    Memory is as sampled. Bytes are those fetched from and sent to storage, including network file
    systems (proc(5), /proc/<pid>/io); None if some process could not be read, such as one with
    another uid.
    """

    def __init__(self) -> None:
        self._page_bytes, self._ticks = os.sysconf("SC_PAGESIZE"), os.sysconf("SC_CLK_TCK")
        # A child's peak (ru_maxrss) includes the memory that it shared with us before execve(2).
        self._own_peak_memory = _own_peak_bytes()
        self.user_cpu_seconds = self.system_cpu_seconds = 0.0
        self._counted: dict[Quantity, float] = {}
        self.peak_memory_bytes: int | None = None
        self.read_bytes: int | None = 0
        self.written_bytes: int | None = 0

    def reap(self) -> dict[int, int]:
        """Wait for all children that have ended, and add their usage; pid → status of wait(2)."""
        ended: dict[int, int] = {}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return ended
            if found is None:
                return ended
            read, written = _storage_bytes(found.si_pid)
            pid, status, used = os.wait4(found.si_pid, 0)
            self.user_cpu_seconds += used.ru_utime
            self.system_cpu_seconds += used.ru_stime
            self.read_bytes = _add_known(self.read_bytes, read)
            self.written_bytes = _add_known(self.written_bytes, written)
            if used.ru_maxrss * _KIB > self._own_peak_memory:
                self._raise_peak(used.ru_maxrss * _KIB)
            ended[pid] = status

    def sample(self) -> dict[Quantity, float | None]:
        """What the processes use, and have used with those that ended, by the kernel's numbers."""
        stats = [stat for pid in self._descendants() if len(stat := _read_stat(pid)) > _RESIDENT]
        if resident := sum(int(stat[_RESIDENT]) for stat in stats) * self._page_bytes:
            self._raise_peak(resident)
        user, system = (
            sum(int(stat[at]) + int(stat[at + _OF_CHILDREN]) for stat in stats) / self._ticks
            for at in (_USER, _SYSTEM)
        )
        return {
            **self._count(job.CPU_USER, self.user_cpu_seconds + user),
            **self._count(job.CPU_SYSTEM, self.system_cpu_seconds + system),
            job.MEMORY_CURRENT: resident or None,
            job.MEMORY_PEAK: self.peak_memory_bytes,
            job.THREADS: sum(int(stat[_THREADS]) for stat in stats) or None,
        }

    def sample_storage(self) -> dict[Quantity, float | None]:
        """Bytes read and written so far, which the kernel keeps as it keeps CPU time."""
        read, written = self.read_bytes, self.written_bytes
        for pid in self._descendants():
            more_read, more_written = _storage_bytes(pid)
            read, written = _add_known(read, more_read), _add_known(written, more_written)
        counted = self._count(job.PROCESS_IO_READ_BYTES, read)
        return counted | self._count(job.PROCESS_IO_WRITTEN_BYTES, written)

    def _count(self, counter: Quantity, value: float | None) -> dict[Quantity, float | None]:
        """A fall would count as a restart: the kernel forgets children that nobody waits for."""
        if value is None:
            return {}
        self._counted[counter] = max(value, self._counted.get(counter, 0))
        return {counter: self._counted[counter]}

    def _raise_peak(self, size: int) -> None:
        self.peak_memory_bytes = max(size, self.peak_memory_bytes or 0)

    def processes(self) -> set[int]:
        return {pid for pid in self._descendants() if not _is_zombie(pid)}

    def _descendants(self) -> set[int]:
        """Also those that have ended, and that nobody has waited for."""
        found = _children(os.getpid())
        for pid in found:
            found.extend(_children(pid))
        return set(found)

    def signal(self, number: int) -> None:
        """Send a signal to every descendant."""
        signal_all(self.processes, number)


def _own_peak_bytes() -> int:
    """The peak of our own memory.

    Our ru_maxrss would include the memory of the process that started us, which may be far larger
    than the run's.
    """
    return read_peak_memory_bytes() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def signal_all(list_processes: Callable[[], set[int]], number: int) -> None:
    """Send a signal to all listed processes that we may signal.

    The id of a process that ends meanwhile may be reused: so each is opened (pidfd), and signalled
    only if it is still on the list afterwards.
    """
    with contextlib.ExitStack() as opened:
        processes: dict[int, int] = {}
        for pid in list_processes():
            with contextlib.suppress(OSError):
                processes[pid] = os.pidfd_open(pid)
                opened.callback(os.close, processes[pid])
        for pid in list_processes() & processes.keys():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(processes[pid], signal.Signals(number))


def _children(pid: int) -> list[int]:
    """/proc/<pid>/task/<tid>/children (proc(5)); on kernels without it, all processes are read."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    except FileNotFoundError:  # the process has ended, or the kernel lacks this file
        if os.path.exists(f"/proc/{pid}/stat") and not os.path.exists(_CHILDREN_FILE):
            return [child for child in _all_pids() if _process_ids(child)[0] == pid]
    except OSError:
        pass
    return found


def processes_led_by(pid: int) -> list[int]:
    """Living processes in the session or process group of a process, which may have ended.

    An id is not given to another process while it is that of a session or group (alloc_pid in
    Linux kernel/pid.c), but afterwards it may be.
    """
    return [
        each
        for each in _all_pids()
        if each != pid and pid in _process_ids(each)[1:] and not _is_zombie(each)
    ]


def _is_zombie(pid: int) -> bool:
    return _read_stat(pid)[:1] in ([b"Z"], [b"X"], [])


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _process_ids(pid: int) -> tuple[int, int, int]:
    """Its parent, process group and session; 0 for a process that is gone."""
    parent, group, session = map(int, _read_stat(pid)[1:4] or (0, 0, 0))
    return parent, group, session


def _read_stat(pid: int) -> list[bytes]:
    """Fields of /proc/<pid>/stat from the state (field 3) on; none of a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _storage_bytes(pid: int) -> tuple[int | None, int | None]:
    """Bytes read from and written to storage, by a process and the children it waited for."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            values = dict(line.split(": ") for line in file)
        return int(values["read_bytes"]), int(values["write_bytes"])
    except (OSError, ValueError, KeyError):
        return None, None


def _add_known(before: int | None, more: int | None) -> int | None:
    return None if before is None or more is None else before + more
