"""One scan of the processes of a job, and what is remembered between scans."""

import errno
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from batchjob.schedulers import registry
from batchjob.schedulers.layout import step_of
from collectors.host import Host, Moment
from collectors.jobs.cgroups.directory import ReadErrors, descendants, pids_of
from collectors.jobs.processes import proc
from collectors.jobs.processes.proc import Clock, Process, ProcessTotals
from collectors.jobs.state.job import Job, ProcessRoot

_MOST_NAMES = 1000  # a job can rename its processes at will


class ExecutableTotals:
    """Sums CPU seconds by program name over running and ended processes of one job.

    Only a process's own usage counts: its children have names of their own. Processes shorter than
    the time between two scans are not counted.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._before: dict[tuple[int, float], float] = {}

    def update(self, processes: Iterable[Process]) -> None:
        """Add the usage of each process since the last scan."""
        now = {}
        for process in processes:
            key = (process.pid, process.started)
            now[key] = process.own_cpu_seconds
            gain = process.own_cpu_seconds - self._before.get(key, 0.0)
            if process.program in self._seconds or len(self._seconds) < _MOST_NAMES:
                known = self._seconds.get(process.program, 0.0)
                self._seconds[process.program] = known + max(gain, 0.0)
        self._before = now

    def top(self, number: int) -> dict[str, float]:
        """The programs with the highest CPU time."""
        ranked = sorted(self._seconds.items(), key=lambda entry: -entry[1])
        return dict(ranked[:number])


_STARTERS = frozenset(name for side in registry.nodes().values() for name in side.starters)

# Errors for a process that has ended, or that /proc hides (proc(5), hidepid).
_ENDED = frozenset({errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM})


_CLOCK_WAS_SET_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class JobScanState:
    """What the scanner's thread remembers of a job; used by that thread only."""

    first_at: float
    began: float = math.inf  # start of its first process, in seconds after boot
    looked_at: float = float("-inf")
    known: dict[int, Process] = field(default_factory=dict)
    # By pid and start time: how often the environment was read.
    asked: dict[tuple[int, float], int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    gpus: dict[frozenset[tuple[str, str]], Mapping[str, str]] = field(default_factory=dict)
    cpus: int | None = None  # on this node, from its environment
    jobid: str | None = None
    owner: int | None = None
    denied: bool = False
    touched: bool = False  # a process has ended since the last scan
    accounts: ProcessTotals = field(default_factory=ProcessTotals)
    programs: ExecutableTotals | None = None


@dataclass(frozen=True)
class ProcessSnapshot:
    """The processes of a job at one moment, by part and by directory below the part's own."""

    trees: Mapping[ProcessRoot, Mapping[str, list[Process]]]
    listed: int  # pids in the cgroups; /proc may hide some of them (proc(5), hidepid)
    complete: bool  # False: a list of processes could not be read

    def all(self) -> list[Process]:
        """Every process, including the scheduler's own."""
        return [p for places in self.trees.values() for found in places.values() for p in found]

    def users(self) -> list[Process]:
        """Without slurmstepd and its like, and the placeholder of Slurm's external step.

        A task begins as a fork of its scheduler as root, and has the scheduler's name until it has
        changed to its user and runs its program.
        """
        found = []
        for tree, places in self.trees.items():
            for below, members in places.items():
                step = step_of(tree.found, below)
                if step is None or (step.role != "scheduler" and step.name != "extern"):
                    found += [one for one in members if one.program not in _STARTERS]
        return found

    def owned(self, owner: int | None) -> list[Process]:
        """The job's processes: all but root's, which in a user's job are the scheduler's."""
        if owner in (None, 0):
            return self.users()
        return [process for process in self.all() if process.uid != 0]


class SnapshotReader:
    """Reads /proc/<pid>, and remembers which process it is reading, in case it hangs there."""

    def __init__(self, host: Host, errors: ReadErrors, io: bool) -> None:
        self.stuck: set[int] = set()
        self.at: tuple[int, float] | None = None  # pid, and since when it is being read
        self.host = host
        self._errors = errors
        self._io = io
        self._clock: Clock | None = None
        self._booted = 0.0

    @property
    def clock(self) -> Clock:
        """Ticks and boot time, read again when the wall clock is set. OSError, ValueError."""
        booted = proc.booted_at()
        if self._clock is None or abs(booted - self._booted) > _CLOCK_WAS_SET_SECONDS:
            kernel = proc.clock(self.host.procfs)
            whole = kernel.boot_time <= booted + 1 and booted - 1 <= kernel.boot_time
            self._clock = kernel._replace(boot_time=booted) if whole else kernel
            self._booted = booted
        return self._clock

    def moment_of(self, seconds_after_boot: float) -> Moment:
        """The time of the scan."""
        return self.host.now().at(self.clock.boot_time + seconds_after_boot)

    def forget_ended(self) -> None:
        """Forget stuck processes that have ended; their pids may be reused."""
        if self.stuck:
            procfs = self.host.procfs
            self.stuck = {pid for pid in self.stuck if os.path.exists(f"{procfs}/{pid}")}

    def read(self, job: Job, state: JobScanState) -> ProcessSnapshot | None:
        """Scan a job; None for another pid namespace, whose processes /proc does not show."""
        trees: dict[ProcessRoot, dict[str, list[Process]]] = {}
        listed, complete = 0, True

        def unreadable(error: OSError | ValueError) -> None:
            nonlocal complete
            complete = False
            self._errors.count(error)

        for tree in job.trees():
            places = trees.setdefault(tree, {})
            for directory in descendants(tree.directory, unreadable):
                pids = pids_of((directory,), unreadable)
                if 0 in pids:
                    self._errors.count("namespace")
                    return None
                listed += len(pids)
                found = [self._process(pid, state) for pid in pids - self.stuck]
                below = directory[len(tree.directory) + 1 :]
                places[below] = [process for process in found if process is not None]
        return ProcessSnapshot(trees, listed, complete)

    def _process(self, pid: int, state: JobScanState) -> Process | None:
        self.at = (pid, self.host.monotonic())
        try:
            return proc.read_process(
                self.host.procfs, pid, self.clock, state.known.get(pid), self._io
            )
        except OSError as error:
            if error.errno in _ENDED:
                return None  # counted in the usage of its parent
            self._errors.count(error)
            return state.known.get(pid)
        except (ValueError, LookupError):
            self._errors.count("malformed")
            return None
        finally:
            self.at = None
