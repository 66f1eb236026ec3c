"""A thread that looks at the jobs' processes: owner, counts, IO, environment.

Only here is /proc read: a look at a process that is stuck in a file system may hang for ever.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from batchjob.logs import Once
from collectors.host import Host
from collectors.jobs import processes
from collectors.jobs.directory import Trouble
from collectors.jobs.exits import Exits
from collectors.jobs.job import Job, Seen
from collectors.jobs.look import Eyes, Notes
from collectors.jobs.names import Names
from collectors.jobs.naming import PATIENCE_SECONDS, ROOT_SECONDS, Naming
from collectors.jobs.processes import Counters, Process
from collectors.jobs.reading import Interface, ProcessReading
from collectors.jobs.registry import Registry

log = logging.getLogger(__name__)

STUCK_SECONDS = 5.0  # a look at one process that lasts longer is given up
_SOON = 0.03  # seconds between looks at a young job, whose owner is there for a moment perhaps
_WITHOUT_OWNER = 0.5  # and between looks at one that is slow to become its user's
_RESTED, _RESTED_WHILE_YOUNG = 50, 4  # looks take 1/50 of the time, and 1/4 after a birth


@dataclass(frozen=True)
class Wanted:
    """What to find out about processes."""

    interval: float
    io: bool
    open_files: bool
    network: bool
    programs: int
    job_name: bool


class Inspector:
    """Owns the thread; publishes `Job.seen`, and has `Naming` publish who the job is."""

    def __init__(
        self,
        host: Host,
        registry: Registry,
        names: Names,
        wanted: Wanted,
        exits: Exits,
        trouble: Trouble,
    ) -> None:
        self._host = host
        self._registry = registry
        self._wanted = wanted
        self._exits = exits
        self._trouble = trouble
        self._eyes = Eyes(host, trouble, wanted.io)
        self._naming = Naming(self._eyes, names, trouble, wanted.job_name)
        self._once = Once(log)
        self._wake = threading.Event()
        self._stopped = False
        self._generation = 0
        self._notes: dict[Job, Notes] = {}
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
        at = self._eyes.at
        if at is None or self._host.monotonic() - at[1] < STUCK_SECONDS:
            return
        self._eyes.stuck.add(at[0])
        self._eyes.at = None
        self._trouble.count("stuck")
        self._once.warning("stuck", "process %d cannot be looked at; left out from now on", at[0])
        self.start()

    def look(self) -> float | None:
        """Look at every job that is due; seconds until the next look, None for "when woken"."""
        generation = self._generation
        self._eyes.forget_ended()
        jobs = self._registry.all()
        living = set(jobs)
        self._notes = {job: notes for job, notes in self._notes.items() if job in living}
        pauses = []
        for job in jobs:
            notes = self._notes.setdefault(job, Notes(self._host.monotonic()))
            if job.ended_at is not None and job.populated() is not None:
                self._name_ended(job, notes)
                continue  # the watcher will say when processes are back
            now = self._host.monotonic()
            if now >= notes.looked_at + self._pause(notes):
                self._inspect(job, notes)
                notes.looked_at = now
            if generation != self._generation:
                return None  # this thread was given up while it hung; another one goes on
            pauses.append(max(notes.looked_at + self._pause(notes) - now, _SOON))
        return min(pauses, default=None)

    def _run(self, generation: int) -> None:
        while not self._stopped and generation == self._generation:
            self._wake.clear()
            begun = self._host.monotonic()
            pause = self._guarded_look()
            young = pause is not None and pause <= 4 * _SOON
            rested = _RESTED_WHILE_YOUNG if young else _RESTED
            rest = min(rested * (self._host.monotonic() - begun), 60.0)
            if generation == self._generation:
                self._wake.wait(None if pause is None else max(pause, rest))

    def _guarded_look(self) -> float | None:
        try:
            return self.look()
        except Exception as error:  # an odd process must not end the looks at all others
            self._once.warning("look", "processes: %s: %s", type(error).__name__, error)
            self._trouble.count("processes")
            return self._wanted.interval

    def _pause(self, notes: Notes) -> float:
        age = notes.looked_at - notes.first_at
        if age < PATIENCE_SECONDS and (notes.owner is None or not notes.details):
            return _SOON if age < 1.0 else 4 * _SOON
        if age < ROOT_SECONDS and not notes.owner:
            return min(_WITHOUT_OWNER, self._wanted.interval)
        return self._wanted.interval

    def _inspect(self, job: Job, notes: Notes) -> None:
        look = self._eyes.look(job, notes)
        if look is None:
            return
        everyone = look.all()
        notes.known = {process.pid: process for process in everyone}
        self._keep_numbers(job, notes)
        if not everyone:
            self._nobody(job, notes, look.listed > 0)
            return
        if job.ended_at is not None:
            job.revive()
        began = self._eyes.clock.boot_time + min(process.started for process in everyone)
        job.started_at = min(began, job.started_at or began)
        self._naming.identify(job, notes, look)
        owned = look.owned(notes.owner)
        earliest = sorted(owned, key=lambda process: process.started)
        self._exits.follow(job, [process.pid for process in earliest])
        sums = notes.accounts.update(everyone)
        if self._wanted.io and sums is not None and sums.read_bytes is None:
            self._naming.denied(notes)
        notes.programs.update(owned)
        job.seen = Seen(
            self._host.monotonic(),
            self._reading(notes, owned, sums),
            tuple(process.pid for process in owned),
            tuple(notes.gpus.values()),
        )

    def _keep_numbers(self, job: Job, notes: Notes) -> None:
        """Of a job so young that it may be gone before anybody asks for its numbers."""
        now = self._host.monotonic()
        if now - notes.first_at < PATIENCE_SECONDS:
            job.read(now)
        job.count_oom_kills()

    def _nobody(self, job: Job, notes: Notes, hidden: bool) -> None:
        """No process to look at: hidden ones make a job, directories without any do not.

        v1 does not say when the last process has gone, and leaves stale directories behind.
        """
        now = self._host.monotonic()
        patience = now - notes.first_at > PATIENCE_SECONDS
        if not hidden and job.populated() is None and (job.seen is not None or patience):
            job.end(now, self._host.clock())
        if patience and (hidden or job.noticed_at is not None):
            self._naming.name(job, notes)

    def _name_ended(self, job: Job, notes: Notes) -> None:
        """A job too short for a look at its owner is shown with what its path tells."""
        if job.identity is None and job.noticed_at is not None and not job.delegated:
            notes.owner = job.found.uid
            self._naming.name(job, notes)

    def _reading(self, notes: Notes, owned: list[Process], sums: Counters | None) -> ProcessReading:
        counters = sums or Counters(0.0, 0.0)
        return ProcessReading(
            processes=len(owned),
            threads=sum(process.threads for process in owned),
            open_files=self._open_files(owned) if self._wanted.open_files else None,
            programs=notes.programs.top(self._wanted.programs),
            network=self._network(owned),
            **counters._asdict(),
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
            return None  # it has ended, or may not be looked at
