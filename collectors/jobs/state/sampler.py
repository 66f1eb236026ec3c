"""A thread that reads CPU time and memory peak of live jobs between scrapes.

A job's cgroup may be removed before the watcher runs; then the last reading is final. So jobs are
read every second in their first minute, and later after another 2 % of their age.
"""

import logging
import threading

from batchjob.runtime.log import LogOnce
from collectors.host import Host
from collectors.jobs.cgroups.reader import BRIEF
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import JobTable

log = logging.getLogger(__name__)

_LEAST_SECONDS = 1.0  # minimum time between two samples of a job, and between wake-ups
_PART_OF_AGE = 0.02
_YOUNG_SECONDS = 60.0


class Sampler:
    """Owns the thread. At most the usage since the last sample of a job is lost."""

    def __init__(self, host: Host, registry: JobTable) -> None:
        self._host = host
        self._registry = registry
        self._due: dict[Job, float] = {}  # monotonic seconds
        self._wake = threading.Event()
        self._stopped = False
        self._once = LogOnce(log)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sampling."""
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def wake(self) -> None:
        """Sample soon, since there is a new job."""
        self._wake.set()

    def sample(self) -> float | None:
        """Read every job that is due; returns seconds until the next one, None without jobs."""
        now = self._host.monotonic()
        before, self._due = self._due, {}
        for job in self._registry.running():
            due = before.get(job, now)
            if due <= now:
                job.read(now, BRIEF)
                due = now + _pause(job, now)
            self._due[job] = due
        return max(min(self._due.values()) - now, _LEAST_SECONDS) if self._due else None

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                pause = self.sample()
            except Exception as error:  # one odd job must not end the thread
                self._once.warning("sample", "sampler: %s: %s", type(error).__name__, error)
                pause = _LEAST_SECONDS
            self._wake.wait(pause)


def _pause(job: Job, now: float) -> float:
    began = job.started or job.noticed
    age = now - began.monotonic if began else 0.0
    return _LEAST_SECONDS if age < _YOUNG_SECONDS else _PART_OF_AGE * age
