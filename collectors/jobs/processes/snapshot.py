"""One scan of the processes of a job, and the state that is kept between scans."""

import errno
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from batchjob.schedulers import registry
from collectors.host import Host, Moment
from collectors.jobs.cgroups.reader import ReadErrors, descendants, read_pids
from collectors.jobs.processes import proc
from collectors.jobs.processes.kernel_counters import KernelState
from collectors.jobs.processes.proc import Process, ProcessTotals
from collectors.jobs.state.job import Job, ProcessRoot

LAUNCHERS = frozenset(
    program for manager in registry.job_managers().values() for program in manager.launchers
)

# Errors for a process that has ended, or that /proc hides (proc(5), hidepid).
_ENDED_ERRNOS = frozenset({errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM})

_CLOCK_WAS_SET_SECONDS = 1.0  # a larger change of the boot time means that the clock was set


@dataclass(slots=True, eq=False)
class JobScanState:
    """The state of a job between scans; used by the scanner's thread only."""

    first_seen_at: float
    first_process_started: float = math.inf  # start of its first process, in seconds after boot
    scanned_at: float = float("-inf")
    last_processes: dict[int, Process] = field(default_factory=dict)
    # By pid and start time: how often the environment was read.
    environ_reads: dict[tuple[int, float], int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    # Variables from which the job's CPUs are read.
    environ: Mapping[str, str] = field(default_factory=dict)
    gpu_environs: Mapping[frozenset[tuple[str, str]], Mapping[str, str]] = field(
        default_factory=dict
    )
    cpus: int | None = None  # on this node, from its environment
    jobid: str | None = None
    owner: int | None = None
    denied: bool = False
    file_reads: int = 0  # of the container engine's files
    threads_seen: int = 0  # the most of all scans
    has_exits: bool = False  # a process has ended since the last scan
    ledger_key: str | None = None  # None: not looked up yet
    totals: ProcessTotals = field(default_factory=ProcessTotals)
    interfaces: set[str] = field(default_factory=set)  # names that have been shown
    kernel: KernelState = field(default_factory=KernelState)


@dataclass(frozen=True)
class ProcessSnapshot:
    """The processes of a job at one moment.

    `without_schedulers`: all but slurmstepd and its like, and the placeholder of Slurm's external
    step. A task begins as a fork of its scheduler as root, and has the scheduler's name until it
    has changed to its user and runs its program.
    """

    by_root: Mapping[ProcessRoot, list[Process]]
    without_schedulers: list[Process]
    listed: int  # pids in the cgroups; /proc may hide some of them (proc(5), hidepid)
    complete: bool  # False: a list of processes could not be read

    def all(self) -> list[Process]:
        """Every process, including the scheduler's own."""
        return [process for members in self.by_root.values() for process in members]

    def owned(self, owner: int | None) -> list[Process]:
        """The job's own processes: in a user's job, those of root belong to the scheduler."""
        if owner in (None, 0):
            return self.without_schedulers
        return [process for process in self.all() if process.uid != 0]


class SnapshotReader:
    """Reads /proc/<pid>; `current_read` tells which process it is reading if it hangs."""

    def __init__(self, host: Host, errors: ReadErrors, io: bool) -> None:
        self.stuck: set[int] = set()
        self.current_read: tuple[int, float] | None = None  # pid, and since when it is being read
        self.host = host
        self._errors = errors
        self.io = io
        self._recorded_boot_time: float | None = None
        self._boot_time = 0.0

    def moment_of(self, seconds_after_boot: float) -> Moment | None:
        """The moment of a start time in /proc/<pid>/stat; None if the time of boot is not known.

        That is read again when the wall clock is set.
        """
        boot_time = proc.read_boot_time()
        recorded = self._recorded_boot_time
        if recorded is None or abs(boot_time - self._boot_time) > _CLOCK_WAS_SET_SECONDS:
            try:
                recorded = proc.read_recorded_boot_time(self.host.procfs)
            except (OSError, ValueError):
                return None
            is_same_boot = abs(recorded - boot_time) <= 1
            recorded = self._recorded_boot_time = boot_time if is_same_boot else recorded
            self._boot_time = boot_time
        return self.host.now().at(recorded + seconds_after_boot)

    def forget_ended(self) -> None:
        """Forget stuck processes that have ended; their pids may be reused."""
        if self.stuck:
            self.stuck = {pid for pid in self.stuck if os.path.exists(f"{self.host.procfs}/{pid}")}

    def read(self, job: Job, state: JobScanState) -> ProcessSnapshot | None:
        """Scan a job; None for another pid namespace, whose processes /proc does not show."""
        by_root: dict[ProcessRoot, list[Process]] = {}
        without_schedulers: list[Process] = []
        listed, complete = 0, True

        def unreadable(error: OSError | ValueError) -> None:
            nonlocal complete
            complete = False
            self._errors.count(error)

        for root in job.process_roots():
            members = by_root.setdefault(root, [])
            scheduler_paths = root.layout_match.layout.scheduler_paths
            for directory in descendants(root.directory, unreadable):
                pids = read_pids((directory,), unreadable)
                if 0 in pids:
                    self._errors.count("namespace")
                    return None
                listed += len(pids)
                read = [self._read_process(pid, state) for pid in pids - self.stuck]
                found = [process for process in read if process is not None]
                members += found
                below = directory[len(root.directory) + 1 :]
                if scheduler_paths is None or not scheduler_paths.fullmatch(below):
                    without_schedulers += [one for one in found if one.program not in LAUNCHERS]
        return ProcessSnapshot(by_root, without_schedulers, listed, complete)

    def _read_process(self, pid: int, state: JobScanState) -> Process | None:
        self.current_read = (pid, self.host.monotonic())
        try:
            return proc.read_process(self.host.procfs, pid, state.last_processes.get(pid), self.io)
        except OSError as error:
            if error.errno in _ENDED_ERRNOS:
                return None  # counted in the usage of its parent
            self._errors.count(error)
            return state.last_processes.get(pid)
        except (ValueError, LookupError):
            self._errors.count("malformed")
            return None
        finally:
            self.current_read = None
