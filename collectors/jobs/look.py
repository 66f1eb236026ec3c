"""One look at the processes of a job, and what is remembered between looks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.host import Host
from collectors.jobs import processes
from collectors.jobs.directory import Trouble, descendants
from collectors.jobs.executables import Programs
from collectors.jobs.job import Job, Tree
from collectors.jobs.layouts import step_of
from collectors.jobs.processes import Accounts, Clock, Process, pids_of

# The programs that start jobs' processes, as the kernel names them (15 bytes at most).
SCHEDULERS = frozenset(
    {"slurmstepd", "pbs_mom", "sbatchd", "res", "condor_starter", "sge_shepherd", "flux-imp"}
)


@dataclass
class Notes:
    """What the inspector's thread remembers of a job. Nobody else touches it."""

    first_at: float
    looked_at: float = float("-inf")
    known: dict[int, Process] = field(default_factory=dict)
    asked: dict[tuple[int, float], int] = field(default_factory=dict)  # for environ, how often
    details: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    gpus: dict[frozenset[tuple[str, str]], Mapping[str, str]] = field(default_factory=dict)
    jobid: str | None = None
    owner: int | None = None
    denied: bool = False
    accounts: Accounts = field(default_factory=Accounts)
    programs: Programs = field(default_factory=Programs)


@dataclass(frozen=True)
class Look:
    """The processes of a job at one moment, by part and by directory below the part's own."""

    trees: Mapping[Tree, Mapping[str, list[Process]]]
    listed: int  # pids in the cgroups; /proc may hide some of them (proc(5), hidepid)

    def all(self) -> list[Process]:
        """Every process, the scheduler's own included."""
        return [p for places in self.trees.values() for found in places.values() for p in found]

    def users(self) -> list[Process]:
        """Without slurmstepd and its like, and the placeholder of Slurm's external step.

        A task begins as root's fork of its scheduler, and bears the name of that until it has
        become its user's and runs his program.
        """
        found = []
        for tree, places in self.trees.items():
            for below, members in places.items():
                step = step_of(tree.found, below)
                if step is None or (step.role != "scheduler" and step.name != "extern"):
                    found += [one for one in members if one.program not in SCHEDULERS]
        return found

    def owned(self, owner: int | None) -> list[Process]:
        """The job's processes: all but root's, which in a user's job are the scheduler's."""
        if owner in (None, 0):
            return self.users()
        return [process for process in self.all() if process.uid != 0]


class Eyes:
    """Reads /proc/<pid>, and knows which process it is at, should it hang there."""

    def __init__(self, host: Host, trouble: Trouble, io: bool) -> None:
        self.stuck: set[int] = set()
        self.at: tuple[int, float] | None = None  # pid, and since when
        self.host = host
        self._trouble = trouble
        self._io = io
        self._clock: Clock | None = None

    @property
    def clock(self) -> Clock:
        """Ticks and time of boot, read once. Raises OSError, ValueError."""
        if self._clock is None:
            self._clock = processes.clock(self.host.procfs)
        return self._clock

    def forget_ended(self) -> None:
        """A process that hung but has ended since is stuck no more; its pid may be used again."""
        if self.stuck:
            procfs = self.host.procfs
            self.stuck = {pid for pid in self.stuck if os.path.exists(f"{procfs}/{pid}")}

    def look(self, job: Job, notes: Notes) -> Look | None:
        """None where processes are of another pid namespace, of which /proc tells nothing."""
        trees: dict[Tree, dict[str, list[Process]]] = {}
        listed = 0
        for tree in job.trees():
            places = trees.setdefault(tree, {})
            for directory in descendants(tree.directory):
                pids = pids_of((directory,))
                if 0 in pids:
                    self._trouble.count("namespace")
                    return None
                listed += len(pids)
                found = [self._process(pid, notes) for pid in pids - self.stuck]
                below = directory[len(tree.directory) + 1 :]
                places[below] = [process for process in found if process is not None]
        return Look(trees, listed)

    def _process(self, pid: int, notes: Notes) -> Process | None:
        self.at = (pid, self.host.monotonic())
        try:
            return processes.read_process(
                self.host.procfs, pid, self.clock, notes.known.get(pid), self._io
            )
        except OSError:
            return None  # it has ended; its parent has its numbers
        except (ValueError, LookupError):
            self._trouble.count("malformed")
            return None
        finally:
            self.at = None
