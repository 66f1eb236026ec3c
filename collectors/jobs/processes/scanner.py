"""A thread that scans the jobs' processes: owner, counts, IO, environment.

Only this thread reads /proc: reading a process that is stuck in a file system may hang for ever.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from batchjob.quantities.reading import Interface, ProcessReading
from batchjob.runtime.log import LogOnce
from collectors.host import Host
from collectors.jobs.cgroups.directory import ReadErrors
from collectors.jobs.processes import proc
from collectors.jobs.processes.exits import ExitWatcher
from collectors.jobs.processes.identifier import PATIENCE_SECONDS, ROOT_SECONDS, JobIdentifier
from collectors.jobs.processes.proc import Process, ProcessCounters
from collectors.jobs.processes.snapshot import ExecutableTotals, JobScanState, SnapshotReader
from collectors.jobs.processes.user_names import UserNames
from collectors.jobs.state.job import Job, JobScan
from collectors.jobs.state.job_table import JobTable

log = logging.getLogger(__name__)

STUCK_SECONDS = 5.0  # if reading one process takes longer, it is abandoned
_SOON = 0.03  # seconds between scans of a young job, whose owner may be visible only briefly
_WITHOUT_OWNER = 0.5  # seconds between scans of a job that does not belong to a user yet
_AGAIN = 0.25  # seconds between scans triggered by scrapes and by exiting processes
# Scans use at most 1/50 of the time, and 1/4 after a job has started.
_RESTED, _RESTED_WHILE_YOUNG = 50, 4


@dataclass(frozen=True)
class ScanSettings:
    """What to read of processes."""

    interval: float
    io: bool
    open_files: bool
    network: bool
    programs: int
    job_name: bool


class ProcessScanner:
    """Owns the thread; publishes `Job.seen`, and has `JobIdentifier` publish who the job is."""

    def __init__(
        self,
        host: Host,
        registry: JobTable,
        names: UserNames,
        wanted: ScanSettings,
        exits: ExitWatcher,
        errors: ReadErrors,
    ) -> None:
        self._host = host
        self._registry = registry
        self._wanted = wanted
        self._exits = exits
        self._errors = errors
        self._reader = SnapshotReader(host, errors, wanted.io)
        self._identifier = JobIdentifier(self._reader, names, errors, wanted.job_name)
        self._once = LogOnce(log)
        self._wake = threading.Event()
        self._rested = threading.Event()  # set while low-priority requests may wake the thread
        self._touched: deque[Job] = deque()  # jobs of which a process has ended
        self._asked_at = float("-inf")
        self._answered = threading.Condition()
        self._requested = self._served = 0  # sequence numbers of calls of `refresh`
        self._stopped = False
        self._generation = 0
        self._states: dict[Job, JobScanState] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start scanning."""
        self._generation += 1
        self._thread = threading.Thread(
            target=self._run, args=(self._generation,), name="processes", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; if it hangs, it is abandoned (it is a daemon thread)."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def wake(self) -> None:
        """Scan soon, since something is new."""
        self._wake.set()

    def exited(self, job: Job) -> None:
        """A process of the job has ended: scan the others soon, and the one that succeeded it."""
        self._touched.append(job)
        self._ask()

    def scraped(self) -> None:
        """The numbers are scraped: scan all jobs for the next scrape."""
        self._asked_at = self._host.monotonic()
        self._ask()

    def refresh(self, patience: float) -> None:
        """Have all jobs scanned now, and wait for that at most `patience` seconds."""
        if self._thread is None:
            return
        with self._answered:
            self._requested += 1
            mine = self._requested
            self._asked_at = self._host.monotonic()
            self._wake.set()
            self._answered.wait_for(lambda: self._served >= mine, patience)

    def _ask(self) -> None:
        if self._rested.is_set():
            self._wake.set()

    def rescue(self) -> None:
        """If the reading of a process hangs, abandon that process and its thread, and go on."""
        at = self._reader.at
        if at is None or self._host.monotonic() - at[1] < STUCK_SECONDS:
            return
        self._reader.stuck.add(at[0])
        self._reader.at = None
        self._errors.count("stuck")
        self._once.warning("stuck", "process %d cannot be read; it is ignored from now on", at[0])
        self.start()

    def settled(self) -> bool:
        """Whether every running job has been identified, disbelieved, or found to be empty."""
        return all(
            job.identity is not None or job.disbelieved is not None or job.populated() is False
            for job in self._registry.running()
        )

    def look(self) -> float | None:
        """Scan every job that is due; seconds until the next scan, None for "when woken"."""
        generation = self._generation
        self._reader.forget_ended()
        jobs = self._registry.all()
        living = set(jobs)
        self._states = {job: state for job, state in self._states.items() if job in living}
        for job in self._taken():
            if job in self._states:
                self._states[job].touched = True
        pauses = []
        for job in jobs:
            state = self._states.setdefault(job, JobScanState(self._host.monotonic()))
            if job.ended is not None and job.populated() is not None:
                self._name_ended(job, state)
                continue  # the watcher reports when it has processes again
            now = self._host.monotonic()
            if now >= state.looked_at + self._pause(state):
                state.touched = False
                self._scan(job, state)
                state.looked_at = now
            if generation != self._generation:
                return None  # abandoned because this thread hung; another thread took over
            pauses.append(max(state.looked_at + self._pause(state) - now, _SOON))
        return min(pauses, default=None)

    def _run(self, generation: int) -> None:
        while not self._stopped and generation == self._generation:
            self._wake.clear()
            requested = self._requested
            begun = self._host.monotonic()
            pause = self._guarded_look()
            with self._answered:
                self._served = max(self._served, requested)
                self._answered.notify_all()
            young = pause is not None and pause <= 4 * _SOON
            rested = _RESTED_WHILE_YOUNG if young else _RESTED
            rest = min(rested * (self._host.monotonic() - begun), 60.0)
            if generation == self._generation:
                self._sleep(pause, rest)

    def _sleep(self, pause: float | None, rest: float) -> None:
        """Rest, which only births shorten; then wait for whoever asks, or for the time to come."""
        woken = self._wake.wait(rest)
        if woken or self._touched or self._asked_at > self._host.monotonic() - rest:
            return
        self._rested.set()
        if not self._touched:
            self._wake.wait(None if pause is None else max(pause - rest, 0.0))
        self._rested.clear()

    def _taken(self) -> Iterator[Job]:
        with contextlib.suppress(IndexError):
            while True:
                yield self._touched.popleft()

    def _guarded_look(self) -> float | None:
        try:
            return self.look()
        except Exception as error:  # one odd process must not end the scans
            self._once.warning("look", "processes: %s: %s", type(error).__name__, error)
            self._errors.count("processes")
            return self._wanted.interval

    def _pause(self, state: JobScanState) -> float:
        age = state.looked_at - state.first_at
        if age < PATIENCE_SECONDS and (state.owner is None or not state.details):
            return _SOON if age < 1.0 else 4 * _SOON
        if age < ROOT_SECONDS and not state.owner:
            return min(_WITHOUT_OWNER, self._wanted.interval)
        asked = state.touched or self._asked_at > state.looked_at
        return min(_AGAIN, self._wanted.interval) if asked else self._wanted.interval

    def _scan(self, job: Job, state: JobScanState) -> None:
        snapshot = self._reader.read(job, state)
        if snapshot is None:
            return
        if not snapshot.complete:
            if snapshot.all():
                self._identifier.identify(job, state, snapshot)
            return  # missing processes may be alive
        everyone = snapshot.all()
        state.known = {process.pid: process for process in everyone}
        self._keep_numbers(job, state)
        if not everyone:
            self._nobody(job, state, snapshot.listed > 0)
            return
        if job.ended is not None:
            job.revive()
        state.began = min(state.began, *(process.started for process in everyone))
        began = self._reader.moment_of(state.began)
        if job.found.started_at is None or began.epoch < job.found.started_at:
            job.started = began
        self._identifier.identify(job, state, snapshot)
        owned = snapshot.owned(state.owner)
        earliest = sorted(owned, key=lambda process: process.started)
        self._exits.follow(job, [process.pid for process in earliest])
        sums = state.accounts.update(everyone)
        if self._wanted.io and sums is not None and sums.read_bytes is None:
            self._identifier.denied(state)
        if self._wanted.programs:
            state.programs = state.programs or ExecutableTotals()
            state.programs.update(owned)
        job.seen = JobScan(
            self._host.monotonic(),
            self._reading(state, owned, sums),
            tuple(process.pid for process in owned),
            tuple(state.gpus.values()),
            state.cpus,
        )

    def _keep_numbers(self, job: Job, state: JobScanState) -> None:
        """Read a job so young that it may be gone before the next scrape."""
        now = self._host.monotonic()
        if now - state.first_at < PATIENCE_SECONDS:
            job.read(now)
        job.count_oom_kills()

    def _nobody(self, job: Job, state: JobScanState, hidden: bool) -> None:
        """Handle a job without visible processes: hidden ones make a job, empty directories do not.

        v1 does not report when the last process has gone, and leaves stale directories behind.
        """
        now = self._host.now()
        patience = now.monotonic - state.first_at > PATIENCE_SECONDS
        populated = job.populated()
        stale = patience and (populated is None or job.noticed is None)
        if not hidden and populated is not True and (job.seen is not None or stale):
            job.end(now)
        if job.found.uid is not None and not job.delegated:
            state.owner = job.found.uid
        known = hidden and state.owner is not None
        if known or (patience and (hidden or job.noticed is not None)):
            self._identifier.name(job, state)

    def _name_ended(self, job: Job, state: JobScanState) -> None:
        """Name a job that ended before its owner could be read, from what its path states."""
        if job.identity is None and job.noticed is not None and not job.delegated:
            state.owner = job.found.uid
            self._identifier.name(job, state)

    def _reading(
        self, state: JobScanState, owned: list[Process], sums: ProcessCounters | None
    ) -> ProcessReading:
        counters = sums or ProcessCounters(0.0, 0.0)
        return ProcessReading(
            processes=len(owned),
            threads=sum(process.threads for process in owned),
            open_files=self._open_files(owned) if self._wanted.open_files else None,
            open_files_limit=self._open_files_limit(owned) if self._wanted.open_files else None,
            programs=state.programs.top(self._wanted.programs) if state.programs else None,
            network=self._network(owned),
            **counters._asdict(),
        )

    def _open_files(self, owned: list[Process]) -> int | None:
        try:
            return sum(proc.count_open_files(self._host.procfs, p.pid) for p in owned)
        except OSError:
            return None  # a partial sum would be wrong

    def _open_files_limit(self, owned: list[Process]) -> int | None:
        total = 0
        for process in owned:
            try:
                limit = proc.read_open_files_limit(self._host.procfs, process.pid)
            except (OSError, ValueError, IndexError):
                return None
            if limit is None:
                return None
            total += limit
        return total or None

    def _network(self, owned: list[Process]) -> Mapping[str, Interface] | None:
        if not (self._wanted.network and owned):
            return None
        first = min(owned, key=lambda process: process.started)
        try:
            return proc.read_network(self._host.procfs, first.pid)
        except (OSError, ValueError, TypeError):
            return None  # the process has ended, or permission is denied
