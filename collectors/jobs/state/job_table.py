"""All jobs of this node: running ones, ended ones that linger, and disbelieved ones."""

import logging
import threading
from collections import deque
from pathlib import PurePosixPath

from batchjob.runtime.log import LogOnce
from batchjob.schedulers.layout import LayoutMatch
from collectors.host import Host
from collectors.jobs.cgroups.job_cgroup import CgroupFiles
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.state.job import Job

log = logging.getLogger(__name__)

OVERFLOW, CONFLICT, UNTRUSTED = "max", "conflict", "untrusted"
IGNORED_REASONS = (OVERFLOW, CONFLICT, UNTRUSTED)


class JobTable:
    """The dict of jobs. Its lock is for look-ups only; each job has its own lock for reading."""

    def __init__(
        self, host: Host, files: CgroupFiles, linger: float, most: int, most_ended: int
    ) -> None:
        self.host = host
        self._files = files
        self._linger = linger
        self._most = most
        self._most_ended = most_ended
        self._jobs: dict[tuple[str, str], Job] = {}
        self._overflow: set[tuple[str, str]] = set()
        self._unproven: deque[tuple[str, str]] = deque()  # found by a walk, perhaps stale
        self._nests = False  # whether any job may contain others
        self._lock = threading.Lock()
        self._once = LogOnce(log)

    def appear(
        self, hierarchy: Hierarchy, path: str, found: LayoutMatch, delegate: int | None, born: bool
    ) -> Job | None:
        """Add a job's directory. Returns the job if that is new; None beyond the maximum.

        A directory that appears when the job's last one is gone begins a new run of it (a requeue):
        its counters start at 0, in the series of the previous run.
        """
        key = (found.manager, found.jobid)
        with self._lock:
            job = self._jobs.get(key)
        if job is not None and job.vanished(self.host.monotonic()):
            self._forget(key, job)
            job = None
        if job is not None:
            return job if job.add(hierarchy, path, found, delegate) else None
        job = Job(found, self.host.now(), born, self._files)
        job.add(hierarchy, path, found, delegate)
        if self._begin(key, job):
            return job
        job.close()
        return None

    def running(self) -> list[Job]:
        """The jobs that have not ended."""
        return [job for job in self.all() if job.ended is None]

    def all(self) -> list[Job]:
        """Every job, including those that linger."""
        with self._lock:
            return list(self._jobs.values())

    def believed(self) -> list[Job]:
        """The jobs to show, running and lingering.

        A pod in which a scheduler's node runs is that node, not a job: its usage is that of its
        jobs.
        """
        jobs = [job for job in self.all() if job.disbelieved is None]
        if not self._nests:
            return jobs
        hosts = {
            str(above)
            for job in jobs
            for tree in job.trees()
            for above in PurePosixPath(tree.path).parents
        }
        return [
            job
            for job in jobs
            if not (job.found.layout.nests and any(tree.path in hosts for tree in job.trees()))
        ]

    def overflow(self) -> int:
        """The number of jobs beyond the maximum since the last walk of all trees."""
        return len(self._overflow)

    def begin_look(self) -> None:
        """A walk of all trees begins: jobs beyond the maximum will be counted again."""
        self._overflow = set()

    def removed(self, job: Job) -> None:
        """A directory of the job was removed: read its final values; with none left, it ended."""
        if not job.check(self.host.monotonic()):
            job.end(self.host.now())

    def prune(self) -> None:
        """Remove jobs that have lingered long enough, and the oldest if there are too many."""
        now = self.host.monotonic()
        ended = [
            (job.ended.monotonic, key, job) for key, job in self._items() if job.ended is not None
        ]
        ended.sort(key=lambda entry: entry[0])
        surplus = len(ended) - self._most_ended
        for at, (ended_at, key, job) in enumerate(ended):
            if at < surplus or now - ended_at > self._linger:
                if job.check(now):
                    continue  # its directory still exists, and may get new processes
                self._forget(key, job)

    def close(self) -> None:
        """Close every job."""
        for key, job in self._items():
            self._forget(key, job)

    def _begin(self, key: tuple[str, str], job: Job) -> bool:
        """Add the job if there is room; abandoned directories must not take a job's place."""
        if len(self._jobs) >= self._most + self._most_ended:
            self.prune()  # otherwise done at scrapes, which may not happen
        if len(self._jobs) >= self._most and job.noticed is None and job.empty():
            return False
        while sum(each.ended is None for each in self.all()) >= self._most:
            if job.empty():
                return False
            if not self._forget_empty():
                self._overflow.add(key)
                self._once.warning(
                    "max", "more than %d jobs: further jobs are counted, not exposed", self._most
                )
                return False
        self._nests |= job.found.layout.nests
        with self._lock:
            self._jobs[key] = job
        if job.noticed is None:
            self._unproven.append(key)
        return True

    def _forget_empty(self) -> bool:
        """Forget one job that existed at the start without a process; each is checked once."""
        while self._unproven:
            key = self._unproven.popleft()
            with self._lock:
                job = self._jobs.get(key)
            if job is not None and job.ended is None and job.seen is None and job.empty():
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
