"""A thread that looks at the jobs' processes: owner, counts, IO, environment.

Only here is /proc read: a look at a process that is stuck in a file system may hang for ever.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from batchjob.logs import Once
from collectors.host import Host
from collectors.jobs import identity, processes
from collectors.jobs.directory import Trouble, descendants, read_path
from collectors.jobs.executables import Programs
from collectors.jobs.job import Job, Seen, Tree
from collectors.jobs.layouts import step_of
from collectors.jobs.names import Names
from collectors.jobs.processes import Clock, Counters, Process, pids_of
from collectors.jobs.reading import Interface, ProcessReading
from collectors.jobs.registry import Registry
from collectors.jobs.view import GPU_VARIABLES

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0  # so long an owner is waited for before a job is shown without one
STUCK_SECONDS = 5.0  # a look at one process that lasts longer is given up
_SOON, _BUSY = 0.03, 50  # seconds between looks at a young job; share of time for looking: 1/50
_ENVIRONMENTS = 16  # processes whose environment is read per job and look
_GPU_SETTINGS = 256  # distinct sets of GPU variables kept per job


@dataclass(frozen=True)
class Wanted:
    """What to find out about processes."""

    interval: float
    io: bool
    open_files: bool
    network: bool
    programs: int
    job_name: bool


@dataclass
class Notes:
    """What the inspector remembers of a job between looks."""

    first_at: float
    looked_at: float = float("-inf")
    known: dict[int, Process] = field(default_factory=dict)
    asked: dict[tuple[int, float], int] = field(default_factory=dict)  # how often, for environ
    details: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    gpus: dict[frozenset[tuple[str, str]], Mapping[str, str]] = field(default_factory=dict)
    jobid: str | None = None
    owner: int | None = None
    denied: bool = False
    programs: Programs = field(default_factory=Programs)


@dataclass(frozen=True)
class _Look:
    """The processes of a job at one moment."""

    trees: Mapping[Tree, Mapping[str, list[Process]]]  # by directory below the job's

    def all(self) -> list[Process]:
        return [p for places in self.trees.values() for found in places.values() for p in found]

    def users(self) -> list[Process]:
        """Without slurmstepd and its like, and the placeholder of Slurm's external step."""
        found = []
        for tree, places in self.trees.items():
            for below, members in places.items():
                step = step_of(tree.found, below)
                if step is None or (step.role != "scheduler" and step.name != "extern"):
                    found += members
        return found


class Inspector:
    """Owns the thread; publishes `Job.seen` and `Job.identity`."""

    def __init__(
        self, host: Host, registry: Registry, names: Names, wanted: Wanted, trouble: Trouble
    ) -> None:
        self._host = host
        self._registry = registry
        self._names = names
        self._wanted = wanted
        self._trouble = trouble
        self._once = Once(log)
        self._wake = threading.Event()
        self._stopped = False
        self._generation = 0
        self._at_process: tuple[int, float] | None = None  # pid, and since when
        self._stuck: set[int] = set()
        self._notes: dict[Job, Notes] = {}
        self._clock: Clock | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._generation += 1
        self._thread = threading.Thread(
            target=self._run, args=(self._generation,), name="processes", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs is left behind (it is a daemon thread)."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def wake(self) -> None:
        """Something is new: look soon."""
        self._wake.set()

    def rescue(self) -> None:
        """Where a look at one process hangs, leave that process and its thread, and go on."""
        at = self._at_process
        if at is None or self._host.monotonic() - at[1] < STUCK_SECONDS:
            return
        self._stuck.add(at[0])
        self._trouble.count("stuck")
        self._once.warning("stuck", "process %d cannot be looked at; left out from now on", at[0])
        self._at_process = None
        self.start()

    def look(self) -> float | None:
        """Look at every job that is due; seconds until the next look, None for "when woken"."""
        jobs = self._registry.all()
        self._notes = {job: notes for job, notes in self._notes.items() if job in set(jobs)}
        delays = []
        for job in jobs:
            notes = self._notes.setdefault(job, Notes(self._host.monotonic()))
            if job.ended_at is not None and job.populated() is not None:
                continue  # the watcher will say when processes are back
            begun = self._host.monotonic()
            if begun >= notes.looked_at + self._pause(notes):
                self._inspect(job, notes)
                notes.looked_at = begun
            delays.append(max(notes.looked_at + self._pause(notes) - begun, _SOON))
        return min(delays, default=None)

    def _run(self, generation: int) -> None:
        cost = 0.0
        while not self._stopped and generation == self._generation:
            self._wake.clear()
            begun = self._host.monotonic()
            delay = self._guarded_look()
            cost = self._host.monotonic() - begun
            if generation == self._generation:
                self._wake.wait(None if delay is None else max(delay, min(_BUSY * cost, 60.0)))

    def _guarded_look(self) -> float | None:
        try:
            return self.look()
        except Exception as error:  # an odd process must not end the looks at all others
            self._once.warning("look", "processes: %s: %s", type(error).__name__, error)
            self._trouble.count("processes")
            return self._wanted.interval

    def _pause(self, notes: Notes) -> float:
        age = self._host.monotonic() - notes.first_at
        if age < PATIENCE_SECONDS and (notes.owner is None or not notes.details):
            return _SOON if age < 1.0 else 4 * _SOON
        return self._wanted.interval

    def _inspect(self, job: Job, notes: Notes) -> None:
        look = self._gather(job, notes)
        if look is None:
            return
        everyone = look.all()
        job.count_oom_kills()
        notes.known = {process.pid: process for process in everyone}
        if not everyone:
            self._empty(job, notes)
            return
        if job.ended_at is not None:
            job.revive()
        began = self._time().boot_time + min(process.started for process in everyone)
        job.started_at = min(began, job.started_at or began)
        self._identify(job, notes, look)
        job.seen = Seen(
            self._host.monotonic(),
            self._reading(notes, look, job.accounts.update(everyone)),
            tuple(process.pid for process in self._owned(notes, look)),
            tuple(notes.gpus.values()),
        )

    def _gather(self, job: Job, notes: Notes) -> _Look | None:
        """None: processes of another pid namespace, of which /proc tells nothing."""
        trees: dict[Tree, dict[str, list[Process]]] = {}
        for tree in job.trees():
            places = trees.setdefault(tree, {})
            for directory in descendants(tree.directory):
                pids = pids_of((directory,))
                if 0 in pids:
                    self._trouble.count("namespace")
                    return None
                below = directory[len(tree.directory) + 1 :]
                found = [self._process(pid, notes) for pid in pids - self._stuck]
                places[below] = [process for process in found if process is not None]
        return _Look(trees)

    def _process(self, pid: int, notes: Notes) -> Process | None:
        self._at_process = (pid, self._host.monotonic())
        try:
            before = notes.known.get(pid)
            return processes.read_process(
                self._host.procfs, pid, self._time(), before, self._wanted.io
            )
        except OSError:
            return None  # it has ended; its parent has its numbers
        except (ValueError, IndexError):
            self._trouble.count("malformed")
            return None
        finally:
            self._at_process = None

    def _time(self) -> Clock:
        if self._clock is None:
            self._clock = processes.clock(self._host.procfs)
        return self._clock

    def _empty(self, job: Job, notes: Notes) -> None:
        """v1 does not say when the last process has gone: directories without any are no job."""
        patience = self._host.monotonic() - notes.first_at > PATIENCE_SECONDS
        if job.populated() is None and (job.seen is not None or patience):
            job.end(self._host.monotonic(), self._host.clock())
        elif patience or job.noticed_at is not None:
            self._name(job, notes, patience)

    def _identify(self, job: Job, notes: Notes, look: _Look) -> None:
        owners = self._owners(look)
        patience = self._host.monotonic() - notes.first_at > PATIENCE_SECONDS
        if notes.owner is None and owners:
            notes.owner = min(owners)
        elif notes.owner is None and patience and look.users():
            notes.owner = min(process.uid for process in look.users())
        job.disbelieved = self._disbelief(look, owners, notes.owner)
        if notes.owner is not None:
            self._read_environments(job, notes, look)
        if notes.jobid is None:
            notes.jobid = self._jobid(job, notes, look)
        if notes.owner is not None or patience:
            self._name(job, notes, patience)

    def _owners(self, look: _Look) -> set[int]:
        found = (
            identity.owner(tree.found, [p for place in places.values() for p in place])
            for tree, places in look.trees.items()
        )
        return {uid for uid in found if uid is not None}

    def _disbelief(self, look: _Look, owners: set[int], owner: int | None) -> str | None:
        """Why a job is not shown: a user can make directories with any name in his own tree."""
        if len(owners) > 1:
            return "conflict"
        for tree in look.trees:
            imitated = tree.delegate is not None and tree.found.uid != tree.delegate
            if imitated and tree.delegate == owner:
                return "untrusted"
        return None

    def _jobid(self, job: Job, notes: Notes, look: _Look) -> str | None:
        """The accounting's id; None while a path that hides it leaves it unknown."""
        variable = job.found.jobid_variable
        if variable is None:
            return job.found.jobid
        if job.found.manager == "slurm":
            for process in look.all():
                if process.uid == 0 and (found := self._titled(process.pid)):
                    return found
        return notes.environ.get(variable)

    def _titled(self, pid: int) -> str | None:
        try:
            return identity.slurm_job_of_title(read_path(f"{self._host.procfs}/{pid}/cmdline"))
        except OSError:
            return None

    def _owned(self, notes: Notes, look: _Look) -> list[Process]:
        """The user's processes: in the external step those are adopted logins."""
        if notes.owner in (None, 0):
            return look.users()
        return [process for process in look.all() if process.uid != 0]

    def _read_environments(self, job: Job, notes: Notes, look: _Look) -> None:
        """Only of processes that are the owner's; a fresh one may not have its own yet."""
        manager = job.found.manager
        names = identity.variables(manager) | {job.found.jobid_variable or ""}
        asked = 0
        for process in sorted(self._owned(notes, look), key=lambda process: process.started):
            key = (process.pid, process.started)
            if process.uid != notes.owner or notes.asked.get(key, 0) > 2 or asked >= _ENVIRONMENTS:
                continue
            asked += 1
            environ = self._environ(process.pid, notes, names)
            found = identity.details(manager, job.found.jobid, environ)
            notes.asked[key] = 3 if found else notes.asked.get(key, 0) + 1
            notes.details = found | notes.details
            notes.environ = dict(environ) | notes.environ
            gpus = {name: said for name, said in environ.items() if GPU_VARIABLES.fullmatch(name)}
            if gpus and len(notes.gpus) < _GPU_SETTINGS:
                notes.gpus.setdefault(frozenset(gpus.items()), gpus)
        living = {(process.pid, process.started) for process in look.all()}
        notes.asked = {key: times for key, times in notes.asked.items() if key in living}

    def _environ(self, pid: int, notes: Notes, names: frozenset[str]) -> Mapping[str, str]:
        def wanted(name: str) -> object:
            return name in names or GPU_VARIABLES.fullmatch(name)

        self._at_process = (pid, self._host.monotonic())
        try:
            return processes.read_environ(self._host.procfs, pid, wanted)
        except OSError as error:
            if isinstance(error, PermissionError) and not notes.denied:
                notes.denied = True
                self._trouble.count(error)
            return {}
        finally:
            self._at_process = None

    def _name(self, job: Job, notes: Notes, patience: bool) -> None:
        """Give the job its name; later knowledge of details renews only the info labels."""
        jobid = notes.jobid or (job.found.jobid if patience or notes.owner is not None else None)
        if jobid is None or (notes.jobid is None and not patience):
            return
        known = job.identity
        if known is None or known.uid != notes.owner or known.name.jobid != jobid:
            user = "" if notes.owner is None else self._names.user(notes.owner) or str(notes.owner)
        else:
            user = known.name.user
        trees = job.trees()
        made = identity.make(
            job.found,
            jobid,
            notes.owner,
            user,
            notes.details,
            trees[0].path if trees else "",
            self._wanted.job_name,
        )
        if made != known:
            job.named(made)

    def _reading(self, notes: Notes, look: _Look, sums: Counters | None) -> ProcessReading:
        owned = self._owned(notes, look)
        counters = sums or Counters(0.0, 0.0)
        notes.programs.update(look.all())
        return ProcessReading(
            processes=len(owned),
            threads=sum(process.threads for process in owned),
            open_files=self._open_files(owned) if self._wanted.open_files else None,
            cpu_user_seconds=counters.cpu_user_seconds,
            cpu_system_seconds=counters.cpu_system_seconds,
            read_bytes=counters.read_bytes,
            written_bytes=counters.written_bytes,
            read_characters=counters.read_characters,
            written_characters=counters.written_characters,
            programs=notes.programs.top(self._wanted.programs),
            network=self._network(owned),
        )

    def _open_files(self, owned: list[Process]) -> int | None:
        try:
            return sum(processes.count_open_files(self._host.procfs, p.pid) for p in owned)
        except OSError:
            return None  # a part of them would be a wrong number

    def _network(self, owned: list[Process]) -> Mapping[str, Interface] | None:
        if not (self._wanted.network and owned):
            return None
        first = min(owned, key=lambda process: process.started)
        try:
            return processes.read_network(self._host.procfs, first.pid)
        except (OSError, ValueError, TypeError):
            return None
