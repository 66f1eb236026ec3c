"""A thread that scans the jobs' processes: owner, counts, IO, environment.

Only this thread reads /proc: reading a process that is stuck in a file system may hang for ever.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchjob.quantities.reading import Interface, ProcessReading
from batchjob.runtime.log import LogOnce
from batchjob.schedulers import registry
from collectors.host import Host
from collectors.jobs.cgroups.reader import ReadErrors
from collectors.jobs.file_systems import FileSystemCounters
from collectors.jobs.processes import identifier, proc
from collectors.jobs.processes.exits import ExitWatcher
from collectors.jobs.processes.kernel_counters import KernelCounters
from collectors.jobs.processes.ledger import ProcessLedger
from collectors.jobs.processes.proc import Process, ProcessCounters
from collectors.jobs.processes.snapshot import JobScanState, SnapshotReader
from collectors.jobs.state.job import Job, JobScan
from collectors.jobs.state.job_table import JobTable

if TYPE_CHECKING:
    from collectors.jobs.collector import JobsOptions

log = logging.getLogger(__name__)

STUCK_SECONDS = 5.0  # if reading one process takes longer, it is abandoned
# Pauses between scans: of a young job, whose owner may be visible only briefly; of a job of unknown
# owner or environment, which its daemon still prepares; and of jobs whose scan is requested by
# scrapes and exiting processes.
_YOUNG_PAUSE_SECONDS = 0.03
_UNIDENTIFIED_PAUSE_SECONDS = 0.5
_REQUESTED_PAUSE_SECONDS = 0.25
# Scans use at most 1/50 of the time, and 1/4 after a job has started.
_REST_FACTOR, _REST_FACTOR_WHILE_YOUNG = 50, 4


class ProcessScanner:
    """Owns the thread; sets `Job.last_scan`, and has `JobIdentifier` set the job's identity."""

    def __init__(
        self,
        host: Host,
        table: JobTable,
        names: identifier.UserNames,
        options: "JobsOptions",
        exits: ExitWatcher,
        errors: ReadErrors,
    ) -> None:
        self._host = host
        self._table = table
        self._interval = options.processes_interval
        self._groups = frozenset(options.metrics)
        self._wants_io = "process-io" in self._groups
        self._exits = exits
        self._errors = errors
        self._reader = SnapshotReader(host, errors, self._wants_io)
        self._file_systems = FileSystemCounters(host)
        self._kernel = KernelCounters(host, self._wants_io, "network" in self._groups)
        self._identifier = identifier.JobIdentifier(
            self._reader, names, errors, options.name, options.container_directories
        )
        self._once = LogOnce(log)
        self._wake = threading.Event()
        self._may_wake = threading.Event()  # set while low-priority requests may wake the thread
        self._jobs_with_exits: deque[Job] = deque()  # jobs of which a process has ended
        self._requested_at = float("-inf")
        self._waiting: list[threading.Event] = []  # to be set after the next scan
        self._stopped = False
        self._generation = 0
        self._states: dict[Job, JobScanState] = {}
        self._thread: threading.Thread | None = None
        self.ledger = ProcessLedger("", "")  # keeps nothing unless it is replaced before the start

    def start(self) -> None:
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
        self.ledger.close()

    def wake(self) -> None:
        """Scan soon: there is a new job, or one has processes again."""
        self._wake.set()

    def request_job_scan(self, job: Job) -> None:
        """Scan the job soon, since one of its processes has ended."""
        self._jobs_with_exits.append(job)
        self._wake_if_rested()

    def request_scan(self) -> None:
        """Scan all jobs soon, so that the next scrape has new values."""
        self._requested_at = self._host.monotonic()
        self._wake_if_rested()

    def refresh(self, timeout: float) -> None:
        """Have all jobs scanned now, and wait for that at most `timeout` seconds."""
        if self._thread is None:
            return
        scanned = threading.Event()
        self._waiting.append(scanned)
        self._requested_at = self._host.monotonic()
        self._wake.set()
        scanned.wait(timeout)

    def _wake_if_rested(self) -> None:
        if self._may_wake.is_set():
            self._wake.set()

    def abandon_stuck_read(self) -> None:
        """If the read of a process hangs, ignore that process and start a new thread."""
        current_read = self._reader.current_read  # read once: the thread may clear it at any time
        if current_read is None:
            return
        pid, began_at = current_read
        if self._host.monotonic() - began_at < STUCK_SECONDS:
            return
        self._reader.stuck.add(pid)
        self._reader.current_read = None
        self._errors.count("stuck")
        self._once.warning("stuck", "process %d cannot be read; it is ignored from now on", pid)
        self.start()

    def scan(self) -> float | None:
        """Scan every job that is due; seconds until the next scan, None for "when woken"."""
        generation = self._generation
        self._reader.forget_ended()
        jobs = self._table.all()
        living = set(jobs)
        self._states = {job: state for job, state in self._states.items() if job in living}
        while self._jobs_with_exits:  # only this thread takes them
            job = self._jobs_with_exits.popleft()
            if job in self._states:
                self._states[job].has_exits = True
        if self._kernel.answered or os.path.exists(self._host.helper):
            self._read_kernel_counters(jobs)
        if "file-systems" in self._groups:
            self._read_file_systems(jobs)
        pauses = []
        for job in jobs:
            state = self._states.setdefault(job, JobScanState(self._host.monotonic()))
            if job.ended is not None and job.populated() is not None:
                self._name_ended(job, state)
                self._count_ended(job, state)
                continue  # the watcher reports when it has processes again
            now = self._host.monotonic()
            if now >= state.scanned_at + self._pause_seconds(job, state):
                state.has_exits = False
                self._scan_job(job, state)
                state.scanned_at = now
            if generation != self._generation:
                return None  # abandoned because this thread hung; another thread took over
            pauses.append(
                max(state.scanned_at + self._pause_seconds(job, state) - now, _YOUNG_PAUSE_SECONDS)
            )
        if self.ledger.is_large:
            self.ledger.compact({state.ledger_key or "" for state in self._states.values()})
        return min(pauses, default=None)

    def _read_kernel_counters(self, jobs: list[Job]) -> None:
        """Ask the helper for all jobs at once; with its numbers, /proc/PID/io is not read."""
        has_ended = False
        for job in jobs:
            state = self._states.setdefault(job, JobScanState(self._host.monotonic()))
            self._kernel.find_cgroups(job, state.kernel)
            has_ended |= job.ended is not None and not self._kernel.is_final(job, state.kernel)
        self._kernel.refresh([state.kernel for state in self._states.values()], has_ended=has_ended)
        self._reader.io = self._wants_io and not self._kernel.counts_io

    def _read_file_systems(self, jobs: list[Job]) -> None:
        try:
            self._file_systems.update(jobs, are_all=not self._table.overflow)
        except (OSError, ValueError) as error:
            self._once.warning("file systems", "file systems are not counted: %s", error)
            self._errors.count(error)

    def _run(self, generation: int) -> None:
        while not self._stopped and generation == self._generation:
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            started = self._host.monotonic()
            pause = self._try_scan()
            for scanned in waiting:
                scanned.set()
            is_young = pause is not None and pause <= 4 * _YOUNG_PAUSE_SECONDS
            rest_factor = _REST_FACTOR_WHILE_YOUNG if is_young else _REST_FACTOR
            rest = min(rest_factor * (self._host.monotonic() - started), 60.0)
            if generation == self._generation:
                self._sleep(pause, rest)

    def _sleep(self, pause: float | None, rest: float) -> None:
        """Rest, unless a new job wakes the thread; then wait for a request or for the next scan."""
        woken = self._wake.wait(rest)
        if woken or self._jobs_with_exits or self._requested_at > self._host.monotonic() - rest:
            return
        self._may_wake.set()
        if not self._jobs_with_exits:
            self._wake.wait(None if pause is None else max(pause - rest, 0.0))
        self._may_wake.clear()

    def _try_scan(self) -> float | None:
        try:
            return self.scan()
        except Exception as error:  # one odd process must not end the scans
            self._once.warning("look", "processes: %s: %s", type(error).__name__, error)
            self._errors.count("processes")
            return self._interval

    def _pause_seconds(self, job: Job, state: JobScanState) -> float:
        age = state.scanned_at - state.first_seen_at
        if age < identifier.OWNER_WAIT_SECONDS and (state.owner is None or not state.details):
            return _YOUNG_PAUSE_SECONDS if age < 1.0 else 4 * _YOUNG_PAUSE_SECONDS
        variables = registry.job_manager(job.layout_match.manager).variables
        lacks_details = bool(variables) and not (state.details or state.denied)
        if age < identifier.ROOT_OWNER_SECONDS and (lacks_details or not state.owner):
            return min(_UNIDENTIFIED_PAUSE_SECONDS, self._interval)
        requested = state.has_exits or self._requested_at > state.scanned_at
        return min(_REQUESTED_PAUSE_SECONDS, self._interval) if requested else self._interval

    def _scan_job(self, job: Job, state: JobScanState) -> None:
        snapshot = self._reader.read(job, state)
        if snapshot is None:
            return
        if not snapshot.complete:
            if snapshot.all():
                self._identifier.identify(job, state, snapshot)
            return  # missing processes may be alive
        processes = snapshot.all()
        state.last_processes = {process.pid: process for process in processes}
        now = self._host.now()
        if now.monotonic - state.first_seen_at < identifier.OWNER_WAIT_SECONDS:
            job.read(now)  # it may be removed before the next scrape
        job.count_oom_kills()
        if processes:
            self._update_start(job, state, processes)
            self._identifier.identify(job, state, snapshot)
        else:
            self._update_without_processes(job, state, snapshot.listed > 0)
            self._count_ended(job, state)
            if snapshot.listed or job.ended or not job.may_be_empty or job.last_scan is None:
                return
        owned = snapshot.owned(state.owner)
        earliest = sorted(owned, key=lambda process: process.started)
        self._exits.follow(job, [process.pid for process in earliest])
        sums = self._sum_processes(job, state)
        lacks_io = sums is not None and sums.read_bytes is None and not self._kernel.counts_io
        if self._wants_io and not state.denied and lacks_io:
            self._count_unreadable_io(state)
        job.last_scan = JobScan(
            self._host.monotonic(),
            self._process_reading(state, owned, sums),
            tuple(process.pid for process in owned),
            tuple(state.gpu_environs.values()),
            state.cpus,
        )

    def _sum_processes(self, job: Job, state: JobScanState) -> ProcessCounters | None:
        """The sums over the job's processes, which are written before they are exposed."""
        if state.ledger_key is None:
            state.ledger_key = self.ledger.key(job)
            state.totals = self.ledger.restore(state.ledger_key, state.kernel)
            for _ in range(state.totals.count_unseen_ends(state.last_processes.values())):
                self._errors.count("ended_unseen")
        sums = state.totals.update(state.last_processes)
        if state.kernel.cgroups:
            sums = self._with_kernel_io(job, state, sums)
        if sums is not None:
            self.ledger.save(state.ledger_key, state.totals, sums, state.kernel)
        return sums

    def _with_kernel_io(
        self, job: Job, state: JobScanState, sums: ProcessCounters | None
    ) -> ProcessCounters | None:
        counted = state.kernel.io
        if not counted.instance and job.last_scan is not None:
            before = job.last_scan.processes  # the helper's numbers go on from these
            counted.shown = [getattr(before, name) or 0.0 for name in ProcessCounters._fields[2:]]
        if gap := self._kernel.update(state.kernel):
            self._errors.count(gap)
        if not counted.instance:
            return sums
        io = self._kernel.shown(state.kernel.io) or (None,) * 4
        return ProcessCounters(*(sums or (0.0, 0.0))[:2], *io)

    def _count_ended(self, job: Job, state: JobScanState) -> None:
        """Show the final counters of the helper, also of a job that ended before its first scan."""
        if job.ended is None or self._kernel.is_final(job, state.kernel):
            return
        sums = self._sum_processes(job, state)
        if not self._kernel.is_final(job, state.kernel):
            return  # the helper does not answer
        counted = sums._asdict() if sums and state.kernel.io.instance else {}
        network = self._kernel.interfaces(state.kernel)
        scan = job.last_scan or JobScan(self._host.monotonic(), ProcessReading(), (), ())
        if network is not None and not state.interfaces:
            counted["network"] = network
        job.last_scan = scan._replace(processes=scan.processes._replace(**counted))

    def _update_start(self, job: Job, state: JobScanState, processes: list[Process]) -> None:
        if job.ended is not None:
            job.revive()
        state.first_process_started = min(
            state.first_process_started, *(process.started for process in processes)
        )
        started = self._reader.moment_of(state.first_process_started)
        stated = job.layout_match.started_at
        if started is not None and (stated is None or started.epoch < stated):
            job.started = started

    def _count_unreadable_io(self, state: JobScanState) -> None:
        for pid in state.last_processes:
            try:
                proc.read_io(self._host.procfs, pid)
            except PermissionError:
                self._identifier.count_denied(state)
            except FileNotFoundError:
                pass  # it has ended, or the kernel counts no IO of processes
            except (OSError, ValueError, KeyError):
                self._errors.count("malformed")
            else:
                continue
            return

    def _update_without_processes(self, job: Job, state: JobScanState, hidden: bool) -> None:
        """End or identify a job without visible processes; `hidden`: it has some that /proc hides.

        v1 does not report when the last process has ended, and may have stale directories.
        """
        now = self._host.now()
        waited = now.monotonic - state.first_seen_at > identifier.OWNER_WAIT_SECONDS
        populated = job.populated()
        stale = waited and (populated is None or job.appeared is None)
        if not hidden and populated is not True and (job.last_scan is not None or stale):
            job.end_if_empty(now)
        if job.layout_match.uid is not None and not job.delegated:
            state.owner = job.layout_match.uid
        is_known = hidden and state.owner is not None
        exists = hidden or job.may_be_empty or job.appeared is not None
        if is_known or (waited and exists):
            self._identifier.update_identity(job, state)

    def _name_ended(self, job: Job, state: JobScanState) -> None:
        """Identify a job that ended before its owner could be read, by its path alone."""
        if job.identity is None and job.appeared is not None and not job.delegated:
            state.owner = job.layout_match.uid
            self._identifier.update_identity(job, state)

    def _process_reading(
        self, state: JobScanState, owned: list[Process], sums: ProcessCounters | None
    ) -> ProcessReading:
        counters = sums or ProcessCounters(0.0, 0.0)
        counts_files = "open-files" in self._groups
        threads = sum(process.threads for process in owned)
        state.threads_seen = max(state.threads_seen, threads)
        return ProcessReading(
            processes=len(owned),
            threads=threads,
            threads_seen=state.threads_seen,
            open_files=self._count_open_files(owned) if counts_files else None,
            open_files_limit=self._sum_open_files_limits(owned) if counts_files else None,
            network=self._read_network(state, owned)
            or (self._kernel.interfaces(state.kernel) if state.kernel.cgroups else None),
            **counters._asdict(),
        )

    def _count_open_files(self, owned: list[Process]) -> int | None:
        try:
            return sum(proc.count_open_files(self._host.procfs, p.pid) for p in owned)
        except OSError:
            return None  # a partial sum would be wrong

    def _sum_open_files_limits(self, owned: list[Process]) -> int | None:
        try:
            limits = [proc.read_open_files_limit(self._host.procfs, p.pid) for p in owned]
        except (OSError, ValueError, IndexError):
            return None
        return None if None in limits else sum(filter(None, limits)) or None

    def _read_network(
        self, state: JobScanState, owned: list[Process]
    ) -> Mapping[str, Interface] | None:
        if not ("network" in self._groups and owned):
            return None
        first = min(owned, key=lambda process: process.started)
        try:
            found = proc.read_network(self._host.procfs, first.pid)
        except PermissionError as error:
            message = "network traffic of jobs is not counted: %s: %s"
            self._once.info("network", message, error.filename, error.strerror)
            return None
        except (OSError, ValueError, TypeError):
            return None  # the process has ended
        if found is None:
            return None
        shown = proc.limit_interfaces(found, state.interfaces)
        if len(shown) < len(found):
            self._errors.count("interfaces")
        return shown
