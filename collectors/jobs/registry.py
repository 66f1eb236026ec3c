"""All jobs of this node: who is there, who has ended and lingers, who is not believed."""

import logging
import threading
from pathlib import PurePosixPath

from batchjob.logs import Once
from collectors.host import Host
from collectors.jobs.job import Job
from collectors.jobs.layouts import Found
from collectors.jobs.mounts import Hierarchy
from collectors.jobs.part import Tables

log = logging.getLogger(__name__)

OVERFLOW, CONFLICT, UNTRUSTED = "max", "conflict", "untrusted"
IGNORED_REASONS = (OVERFLOW, CONFLICT, UNTRUSTED)


class Registry:
    """The dict of jobs. Its lock is for look-ups only; each job has its own for reading."""

    def __init__(
        self, host: Host, tables: Tables, linger: float, most: int, most_ended: int
    ) -> None:
        self.host = host
        self._tables = tables
        self._linger = linger
        self._most = most
        self._most_ended = most_ended
        self._jobs: dict[tuple[str, str], Job] = {}
        self._overflow: set[tuple[str, str]] = set()
        self._nests = False  # whether any job may be the host of others
        self._lock = threading.Lock()
        self._once = Once(log)

    def appear(
        self, hierarchy: Hierarchy, path: str, found: Found, delegate: int | None, born: bool
    ) -> Job | None:
        """A job's directory is there. Returns the job if that is news; None past the maximum.

        A directory that comes when the job's last one is gone begins a new run of it (a requeue):
        its counters start at 0, in the series of the run before.
        """
        key = (found.manager, found.jobid)
        with self._lock:
            job = self._jobs.get(key)
        if job is not None and job.vanished():
            self._forget(key, job)
            job = None
        if job is None:
            job = self._begin(key, found, born)
        if job is None or not job.add(hierarchy, path, found, delegate):
            return None
        return job

    def running(self) -> list[Job]:
        """The jobs that have not ended."""
        return [job for job in self.all() if job.ended_at is None]

    def all(self) -> list[Job]:
        """Every job, also those that linger."""
        with self._lock:
            return list(self._jobs.values())

    def believed(self) -> list[Job]:
        """The jobs to show, running and lingering.

        A pod in which a scheduler's node runs is that node, not a job: what it uses is in its jobs.
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
        """How many jobs there were beyond the maximum since the last look at all trees."""
        return len(self._overflow)

    def begin_look(self) -> None:
        """A look at all trees begins: what is still too much will be counted anew."""
        self._overflow = set()

    def removed(self, job: Job) -> None:
        """Some directory of the job was removed: take its last values; with none left, it ended."""
        if not job.check(self.host.monotonic()):
            job.end(self.host.monotonic(), self.host.clock())

    def prune(self) -> None:
        """Let go of jobs that have lingered long enough, and of the oldest of too many."""
        now = self.host.clock()
        ended = [(job.ended_at, key, job) for key, job in self._items() if job.ended_at is not None]
        ended.sort(key=lambda entry: entry[0])
        surplus = len(ended) - self._most_ended
        for at, (ended_at, key, job) in enumerate(ended):
            if at < surplus or now - ended_at > self._linger:
                if job.check(self.host.monotonic()):
                    continue  # its directory is still there, and processes may come back
                self._forget(key, job)

    def close(self) -> None:
        """Close every job."""
        for key, job in self._items():
            self._forget(key, job)

    def _begin(self, key: tuple[str, str], found: Found, born: bool) -> Job | None:
        if len(self._jobs) >= self._most + self._most_ended:
            self.prune()  # nobody scrapes
        job = Job(found, self.host.clock() if born else None, self._tables)
        self._nests |= found.layout.nests
        with self._lock:
            live = sum(each.ended_at is None for each in self._jobs.values())
            if live < self._most:
                self._jobs[key] = job
                return job
        self._overflow.add(key)
        self._once.warning("max", "more than %d jobs: the rest is counted, not shown", self._most)
        return None

    def _items(self) -> list[tuple[tuple[str, str], Job]]:
        with self._lock:
            return list(self._jobs.items())

    def _forget(self, key: tuple[str, str], job: Job) -> None:
        with self._lock:
            if self._jobs.get(key) is job:
                del self._jobs[key]
        job.close()
