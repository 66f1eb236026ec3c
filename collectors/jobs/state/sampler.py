"""A thread that reads CPU time and memory peak of live jobs between scrapes.

A job's cgroup may be removed before the watcher runs; then the last reading is final. So jobs are
read every second in their first minute, and later after another 2 % of their age.
"""

import logging
import threading

from batchjob.runtime.log import LogOnce
from collectors.host import Host
from collectors.jobs.cgroups.formats import SAMPLED
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import JobTable

log = logging.getLogger(__name__)

_MIN_INTERVAL_SECONDS = 1.0  # between two samples of a job, and between wake-ups
_INTERVAL_PER_AGE = 0.02
_YOUNG_SECONDS = 60.0


class Sampler:
    """Owns the thread. If a job's end is missed, only its usage since the last sample is lost."""

    def __init__(self, host: Host, table: JobTable) -> None:
        self._host = host
        self._table = table
        self._due_at: dict[Job, float] = {}  # monotonic seconds
        self._wake = threading.Event()
        self._stopped = False
        self._once = LogOnce(log)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def wake(self) -> None:
        """Sample soon: there is a new job."""
        self._wake.set()

    def sample(self) -> float | None:
        """Read every job that is due; returns seconds until the next one, None without jobs."""
        moment = self._host.now()
        now = moment.monotonic
        previous, self._due_at = self._due_at, {}
        for job in self._table.running():
            due_at = previous.get(job, now)
            if due_at <= now:
                job.read(moment, SAMPLED)
                due_at = now + _sample_interval(job, now)
            self._due_at[job] = due_at
        return (
            max(min(self._due_at.values()) - now, _MIN_INTERVAL_SECONDS) if self._due_at else None
        )

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                pause = self.sample()
            except Exception as error:  # one odd job must not end the thread
                self._once.warning("sample", "sampler: %s: %s", type(error).__name__, error)
                pause = _MIN_INTERVAL_SECONDS
            self._wake.wait(pause)


def _sample_interval(job: Job, now: float) -> float:
    started = job.started or job.appeared
    age = now - started.monotonic if started else 0.0
    return _MIN_INTERVAL_SECONDS if age < _YOUNG_SECONDS else _INTERVAL_PER_AGE * age
