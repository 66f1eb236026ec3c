"""All jobs of this node: running, lingering and ignored ones, and the thread that samples them.

A job's cgroup may be removed before the watcher runs; then the last reading is final. So jobs are
read every second in their first minute, and later after another 2 % of their age.
"""

import logging
import threading
from collections import deque
from pathlib import PurePosixPath

from batchjob.runtime.background import PeriodicTask
from batchjob.runtime.log import LogOnce
from batchjob.schedulers.layout import LayoutMatch
from collectors.host import Host
from collectors.jobs.cgroups.formats import SAMPLED
from collectors.jobs.cgroups.job_cgroup import CgroupFiles
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.state.job import Job

log = logging.getLogger(__name__)

OVERFLOW, CONFLICT, UNTRUSTED = "max", "conflict", "untrusted"
IGNORED_REASONS = (OVERFLOW, CONFLICT, UNTRUSTED)

_MIN_SAMPLE_SECONDS = 1.0  # between two samples of a job, and between wake-ups
_SAMPLE_SECONDS_PER_AGE = 0.02
_YOUNG_SECONDS = 60.0


class JobTable:
    """The table of jobs. Its lock is for look-ups only; each job has its own lock for reading."""

    def __init__(
        self, host: Host, files: CgroupFiles, linger: float, max_running: int, max_ended: int
    ) -> None:
        self.host = host
        self._files = files
        self._linger = linger
        self._max_running = max_running
        self._max_ended = max_ended
        self._jobs: dict[tuple[str, str], Job] = {}
        self.overflow: set[tuple[str, str]] = set()
        """The jobs beyond the maximum since the last walk of all trees, which resets it."""
        self._maybe_stale: deque[tuple[str, str]] = deque()  # found by a walk, perhaps stale
        self._has_nesting = False  # whether any job may contain others
        self._lock = threading.Lock()
        self._once = LogOnce(log)

    def add_directory(
        self,
        hierarchy: Hierarchy,
        path: str,
        layout_match: LayoutMatch,
        delegate: int | None,
        is_new: bool,
    ) -> tuple[Job, str] | None:
        """Add a job's directory. Returns the job and the absolute path if the directory is new.

        Jobs beyond the maximum are not added.

        A directory that appears when the job's last one is gone begins a new run of it (a requeue):
        its counters start at 0, in the series of the previous run.
        """
        key = (layout_match.manager, layout_match.jobid)
        with self._lock:
            job = self._jobs.get(key)
        if job is not None and job.has_vanished(self.host.now()):
            self._forget(key, job)
            job = None
        is_known = job is not None
        if job is None:
            now, stated = self.host.now(), layout_match.started_at
            started = None if stated is None else now.at(stated)
            job = Job(layout_match, now if is_new else None, started, self._files)
        directory = job.add(hierarchy, path, layout_match, delegate)
        if directory is None:
            return None
        if is_known or self._admit(key, job):
            return job, directory
        job.close()
        return None

    def running(self) -> list[Job]:
        return [job for job in self.all() if job.ended is None]

    def all(self) -> list[Job]:
        with self._lock:
            return list(self._jobs.values())

    def visible(self) -> list[Job]:
        """The jobs to expose, running and lingering.

        A pod that runs a scheduler's node is left out: its usage is that of the node's jobs.
        """
        jobs = [job for job in self.all() if job.ignored_reason is None]
        if not self._has_nesting:
            return jobs
        node_paths = {
            str(parent)
            for job in jobs
            for root in job.process_roots()
            for parent in PurePosixPath(root.path).parents
        }
        return [
            job
            for job in jobs
            if not (
                job.layout_match.layout.can_contain_jobs
                and any(root.path in node_paths for root in job.process_roots())
            )
        ]

    def prune(self) -> None:
        """Remove jobs that have lingered long enough, and the oldest if there are too many."""
        now = self.host.now()
        ended = [
            (job.ended.monotonic, key, job) for key, job in self._items() if job.ended is not None
        ]
        ended.sort(key=lambda entry: entry[0])
        surplus = len(ended) - self._max_ended
        for index, (ended_at, key, job) in enumerate(ended):
            if index < surplus or now.monotonic - ended_at > self._linger:
                if job.read_remaining(now):
                    continue  # a directory still exists, and may get new processes
                self._forget(key, job)

    def close(self) -> None:
        for key, job in self._items():
            self._forget(key, job)

    def _admit(self, key: tuple[str, str], job: Job) -> bool:
        """Add the job unless the maximum is reached; empty directories do not count as jobs."""
        if len(self._jobs) >= self._max_running + self._max_ended:
            self.prune()  # otherwise done at scrapes, which may not happen
        if len(self._jobs) >= self._max_running and job.appeared is None and job.is_empty():
            return False
        while sum(each.ended is None for each in self.all()) >= self._max_running:
            if job.is_empty():
                return False
            if not self._forget_empty_job():
                self.overflow.add(key)
                self._once.warning(
                    "max",
                    "more than %d jobs: further jobs are counted, not exposed",
                    self._max_running,
                )
                return False
        self._has_nesting |= job.layout_match.layout.can_contain_jobs
        with self._lock:
            self._jobs[key] = job
        if job.appeared is None:
            self._maybe_stale.append(key)
        return True

    def _forget_empty_job(self) -> bool:
        """Forget one job without processes that existed at the start; each is checked once."""
        while self._maybe_stale:
            key = self._maybe_stale.popleft()
            with self._lock:
                job = self._jobs.get(key)
            if job is not None and job.ended is None and job.last_scan is None and job.is_empty():
                self._forget(key, job)
                return True
        return False

    def _items(self) -> list[tuple[tuple[str, str], Job]]:
        with self._lock:
            return list(self._jobs.items())

    def _forget(self, key: tuple[str, str], job: Job) -> None:
        with self._lock:
            if self._jobs.get(key) is job:
                del self._jobs[key]
        job.close()


class Sampler(PeriodicTask):
    """A thread that reads CPU time and memory peak of live jobs between scrapes.

    If a job's end is missed, only its usage since the last sample is lost.
    """

    def __init__(self, table: JobTable) -> None:
        super().__init__("sampler", self.sample)
        self._table = table
        self._due_at: dict[Job, float] = {}  # monotonic seconds

    def sample(self) -> float | None:
        """Read every job that is due; returns seconds until the next one, None without jobs."""
        moment = self._table.host.now()
        now = moment.monotonic
        previous, self._due_at = self._due_at, {}
        for job in self._table.running():
            due_at = previous.get(job, now)
            if due_at <= now:
                job.read(moment, SAMPLED)
                started = job.started or job.appeared
                age = now - started.monotonic if started else 0.0
                is_young = age < _YOUNG_SECONDS
                due_at = now + (_MIN_SAMPLE_SECONDS if is_young else _SAMPLE_SECONDS_PER_AGE * age)
            self._due_at[job] = due_at
        return max(min(self._due_at.values()) - now, _MIN_SAMPLE_SECONDS) if self._due_at else None
