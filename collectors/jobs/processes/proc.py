"""Processes of a job, from /proc (proc(5)). A read may block forever: never call it in a scrape.

A process controls the length of its environ and cmdline, whatever memory it has: with
prctl(PR_SET_MM_MAP) they can be any range of its addresses. So every read is bounded.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from batchjob.quantities.reading import Interface
from collectors.host import read_head, read_path
from collectors.jobs.cgroups.formats import parse_uint64

_PAGE_BYTES = 4096  # stat, io and the beginning of status are far shorter
_MAX_ENVIRON_BYTES = 128 << 10
MAX_VALUE_CHARACTERS = 4096  # of an environment variable; UUIDs of 50 MIG instances take 2 kB
# Per job and its whole life: each name of an interface has series of its own.
_MAX_INTERFACES = 32


class ProcessCounters(NamedTuple):
    """The usage of a process and of its children that it waited for; all counters.

    The kernel adds a child's numbers to its parent when the parent waits for it (kernel/exit.c,
    wait_task_zombie): utime to cutime, IO to the parent's own.
    """

    cpu_user_seconds: float
    cpu_system_seconds: float
    read_bytes: float | None = None  # None: no permission to read /proc/<pid>/io
    written_bytes: float | None = None
    read_characters: float | None = None
    written_characters: float | None = None


class Process(NamedTuple):
    """One reading of /proc/<pid>. `pid` and `started` together identify a process."""

    pid: int
    started: float  # seconds after boot
    parent: int
    uid: int
    threads: int
    program: str  # first 15 bytes of its name
    counters: ProcessCounters


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def read_boot_time() -> float:
    """Epoch seconds of this machine's boot; btime of /proc/stat is truncated to seconds."""
    return time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)


def read_recorded_boot_time(procfs: str) -> float:
    """Epoch seconds of the boot in /proc/stat. Raises OSError, ValueError."""
    for line in read_path(f"{procfs}/stat").splitlines():
        if line.startswith(b"btime "):
            return float(line[6:])
    raise ValueError(f"{procfs}/stat has no btime line")


def read_process(procfs: str, pid: int, previous: Process | None, io: bool) -> Process:
    """Read one process; with `previous`, an earlier reading, the uid is not read again.

    Raises OSError if it has ended, ValueError or IndexError if stat is malformed.
    """
    stat = read_head(f"{procfs}/{pid}/stat", _PAGE_BYTES)
    end = stat.rindex(b")")  # the name may contain anything, including parentheses and line feeds
    fields = stat[end + 2 :].split()
    ticks = _TICKS_PER_SECOND
    cpu_seconds = (
        (parse_uint64(fields[11]) + parse_uint64(fields[13])) / ticks,
        (parse_uint64(fields[12]) + parse_uint64(fields[14])) / ticks,
    )
    started = parse_uint64(fields[19]) / ticks
    # A process of root may become the user's: slurmstepd forks, and the child changes its uid.
    is_uid_final = previous is not None and previous.started == started and previous.uid != 0
    return Process(
        pid,
        started,
        parse_uint64(fields[1]),
        previous.uid if is_uid_final and previous is not None else read_uid(procfs, pid),
        parse_uint64(fields[17]),
        stat[stat.index(b"(") + 1 : end].decode(errors="replace"),
        ProcessCounters(*cpu_seconds, *(_io_if_readable(procfs, pid) if io else ())),
    )


def read_uid(procfs: str, pid: int) -> int:
    """The real uid: a set-uid program runs for the user who started it. OSError, ValueError."""
    try:
        status = read_head(f"{procfs}/{pid}/status", _PAGE_BYTES)
    except FileNotFoundError:
        return os.stat(f"{procfs}/{pid}").st_uid  # the effective one
    for line in status.splitlines():
        if line.startswith(b"Uid:"):
            return parse_uint64(line.split()[1])
    raise ValueError(f"{procfs}/{pid}/status has no Uid line")


def read_io(procfs: str, pid: int) -> tuple[float, ...]:
    """Bytes read from and written to storage, then all bytes of read and write calls.

    Raises OSError: the file of another user needs CAP_SYS_PTRACE (proc(5)), and a kernel without
    CONFIG_TASK_IO_ACCOUNTING has none. Raises ValueError or KeyError if it is malformed.
    """
    text = read_head(f"{procfs}/{pid}/io", _PAGE_BYTES)
    pairs = dict(line.split(b": ") for line in text.splitlines())
    return tuple(
        parse_uint64(pairs[key]) for key in (b"read_bytes", b"write_bytes", b"rchar", b"wchar")
    )


def _io_if_readable(procfs: str, pid: int) -> tuple[float, ...]:
    try:
        return read_io(procfs, pid)
    except (OSError, ValueError, KeyError):
        os.stat(f"{procfs}/{pid}/stat")  # raises OSError if the process has ended
        return ()


def read_environ(procfs: str, pid: int, wanted: Callable[[str], object]) -> Mapping[str, str]:
    """The given variables, as they were when the program started. Raises OSError.

    Bytes that are not UTF-8 are replaced, so that values can be labels. At most the first 128 KiB,
    and 4096 characters of a value, are read.
    """
    variables = {}
    data = read_head(f"{procfs}/{pid}/environ", _MAX_ENVIRON_BYTES)
    if len(data) == _MAX_ENVIRON_BYTES:
        data = data[: data.rfind(b"\0") + 1]  # the last entry is truncated
    for entry in data.split(b"\0"):
        name, _, value = entry.partition(b"=")
        text = name.decode(errors="replace")
        if wanted(text):
            decoded = value[: 4 * MAX_VALUE_CHARACTERS].decode(errors="replace")
            variables[text] = decoded[:MAX_VALUE_CHARACTERS]
    return variables


def count_open_files(procfs: str, pid: int) -> int:
    """The number of open descriptors, without a list of them: there may be a million. OSError."""
    with os.scandir(f"{procfs}/{pid}/fd") as entries:
        return sum(1 for _ in entries)


def read_open_files_limit(procfs: str, pid: int) -> int | None:
    """The process's soft limit of open descriptors; None: unlimited.

    Raises OSError, and ValueError if the file has no such line (proc_pid_limits(5)).
    """
    for line in read_head(f"{procfs}/{pid}/limits", _PAGE_BYTES).splitlines():
        if line.startswith(b"Max open files"):
            soft = line.split()[3]
            return None if soft == b"unlimited" else parse_uint64(soft)
    raise ValueError("no limit of open files")


def read_command_line(procfs: str, pid: int) -> bytes:
    """The beginning of the command line, or of the title that the process set. OSError."""
    return read_head(f"{procfs}/{pid}/cmdline", _PAGE_BYTES)


def read_network(procfs: str, pid: int) -> Mapping[str, Interface] | None:
    """Traffic per interface, if the process has a network namespace of its own.

    In the host's namespace, the numbers would be those of the whole machine. Raises OSError, and
    ValueError if there are more interfaces than are shown.
    """
    own = os.stat(f"{procfs}/{pid}/ns/net")
    try:
        host = os.stat(f"{procfs}/1/ns/net")
    except PermissionError:  # without CAP_SYS_PTRACE; the job's is not known to be another one
        if os.path.samestat(own, os.stat(f"{procfs}/self/ns/net")):
            return None
        raise
    if os.path.samestat(own, host):
        return None
    interfaces = {}
    text = read_path(f"{procfs}/{pid}/net/dev").decode(errors="replace")
    lines = text.split("\n", _MAX_INTERFACES + 4)[2:]
    if len(lines) > _MAX_INTERFACES + 1:  # plus the empty string at the end
        raise ValueError(f"{procfs}/{pid}/net/dev: more than {_MAX_INTERFACES} interfaces")
    for line in filter(None, lines):
        name, _, numbers = line.partition(":")
        words = [parse_uint64(word) for word in numbers.split()]
        if name.strip() != "lo":
            interfaces[name.strip()] = Interface(*words[0:4], *words[8:12])
    return interfaces


def limit_interfaces(found: Mapping[str, Interface], names: set[str]) -> Mapping[str, Interface]:
    """The interfaces that have a name of `names`, to which new ones are added up to the limit.

    Whoever owns a namespace may rename its interfaces at any time, and each name is a new series.
    """
    for name in found:
        if len(names) < _MAX_INTERFACES:
            names.add(name)
    return {name: each for name, each in found.items() if name in names}


_NO_USAGE = (0.0,) * len(ProcessCounters._fields)


class ProcessTotals:
    """Sums over a job's processes that never decrease when processes end.

    The usage of an ended process is in its parent's numbers if the parent waited for it, which is
    assumed of a parent that gained at least as much. Otherwise the last reading is kept.
    """

    __slots__ = ("_known", "_living", "_shown", "ended")

    def __init__(
        self,
        ended: tuple[float, ...] = _NO_USAGE,
        shown: ProcessCounters | None = None,
        known: tuple[int, float] = (0, 0.0),
    ) -> None:
        """What an exporter that knew the job before has kept.

        `ended`, the sums that were last `shown`, and how many processes it had `known` then, with
        the start of the youngest in seconds after boot. Of a process that ended meanwhile, only
        what was shown is known: the sums do not fall.
        """
        self._living: Mapping[int, Process] = {}
        self._shown = shown
        self._known = known
        self.ended = ended

    def known(self) -> tuple[int, float]:
        """The number of living processes, and the start of the youngest."""
        starts = [process.started for process in self._living.values()]
        return len(starts), max(starts, default=0.0)

    def count_unseen_ends(self, processes: Iterable[Process]) -> int:
        """How many of the processes that an exporter had known are not among the living ones."""
        number, youngest = self._known
        self._known = (0, 0.0)
        return max(0, number - sum(process.started <= youngest for process in processes))

    def update(self, processes: Mapping[int, Process]) -> ProcessCounters | None:
        """Add a scan of all processes of the job, by pid; returns the sums, None without any.

        A counter that cannot be read for some process has no sum.
        """
        ended = list(self.ended)
        inherited: dict[int, list[float]] = {}
        for process in self._living.values():
            if _is_in(processes, process):
                continue
            ancestor = self._living_ancestor(process, processes)
            lost = ended if ancestor is None else inherited.setdefault(ancestor, list(_NO_USAGE))
            for index, value in enumerate(process.counters):
                lost[index] += value or 0.0
        for ancestor, lost in inherited.items():
            before, after = self._living[ancestor].counters, processes[ancestor].counters
            for index, value in enumerate(lost):
                gain = (after[index] or 0.0) - (before[index] or 0.0)
                ended[index] += max(0.0, value - gain)
        if any(ended):
            self.ended = tuple(ended)
        self._living = processes
        if self._shown is not None:
            sums = self._sum() or _NO_USAGE
            self.ended = tuple(
                ended if before is None or now is None else ended + max(0.0, before - now)
                for ended, now, before in zip(self.ended, sums, self._shown, strict=True)
            )
            self._shown = None
        return self._sum()

    def _living_ancestor(self, process: Process, processes: Mapping[int, Process]) -> int | None:
        """The pid of the nearest ancestor within the job that is still alive."""
        for _ in range(len(self._living)):
            parent = self._living.get(process.parent)
            if parent is None:
                return None
            if _is_in(processes, parent):
                return parent.pid
            process = parent
        return None

    def _sum(self) -> ProcessCounters | None:
        if not self._living and not any(self.ended):
            return None
        sums: list[float | None] = []
        for index, ended in enumerate(self.ended):
            values = [process.counters[index] for process in self._living.values()]
            readable = [value for value in values if value is not None]
            sums.append(ended + sum(readable) if len(readable) == len(values) else None)
        return ProcessCounters(*sums)  # type: ignore[arg-type]  # the first two are always known


def _is_in(processes: Mapping[int, Process], process: Process) -> bool:
    """Whether the process is still alive; its pid may have been reused."""
    found = processes.get(process.pid)
    return found is not None and found.started == process.started
