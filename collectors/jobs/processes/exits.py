"""A thread that is notified when processes of jobs exit, to read their cgroups at once.

A scheduler removes a cgroup some milliseconds after its last process. v1 does not report that it is
empty; on v2, slurmstepd itself is in the job's cgroup, leaves it and removes it at once. On a busy
node, either happens before the watcher is notified. pidfd_open(2), since Linux 5.3, reports the
exit itself, at the moment the scheduler is notified too. The CPU time with which slurmstepd then
ends the job belongs to the job as well: the cgroup is read repeatedly until it is gone.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

from batchjob.runtime.log import LogOnce
from collectors.jobs.cgroups.directory import DescriptorBudget
from collectors.jobs.state.job import Job

log = logging.getLogger(__name__)

_FOLLOWED = 4  # maximum processes per job: the earliest ones, among them the batch script
_AGAIN_SECONDS = 0.01  # seconds between readings after the last followed process has exited
_ENDING_SECONDS = 0.25  # duration of these readings; slurmstepd takes some milliseconds


class ExitWatcher:
    """Owns the pidfds and the thread, which is started with the first process to follow."""

    def __init__(
        self,
        exited: Callable[[Job], object],
        ending: Callable[[Job], bool],
        descriptors: DescriptorBudget,
    ) -> None:
        """`ending` reads a job without processes to follow; False when the job has ended."""
        self._exited = exited
        self._ending = ending
        self._descriptors = descriptors
        self._poll: select.epoll | None = None
        self._stop = -1  # an eventfd, once the thread runs
        self._stopped = False
        self._followed: dict[int, tuple[Job, int]] = {}  # pidfd → job, pid
        self._pids: dict[Job, list[int]] = {}  # a few per job
        self._lock = threading.Lock()
        self._once = LogOnce(log)

    def follow(self, job: Job, pids: Iterable[int]) -> None:
        """Call `exited` when one of these processes ends; the earliest come first."""
        with self._lock:
            if self._stopped:
                return
            known = self._pids.setdefault(job, [])
            for pid in pids:
                if len(known) < _FOLLOWED and pid not in known and self._open(job, pid):
                    known.append(pid)
            if not known:
                del self._pids[job]

    def stop(self) -> None:
        """Stop the thread and close the pidfds."""
        with self._lock:
            self._stopped = True
            if self._poll is not None:
                os.eventfd_write(self._stop, 1)
            for descriptor in list(self._followed):
                self._close(descriptor)

    def _open(self, job: Job, pid: int) -> bool:
        if not self._descriptors.take():
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._descriptors.give_back(1)
            return False  # the process has ended, or the kernel is too old
        self._followed[descriptor] = job, pid
        poll = self._poll or self._start()
        poll.register(descriptor, select.EPOLLIN)
        return True

    def _start(self) -> select.epoll:
        self._poll = select.epoll()
        self._stop = os.eventfd(0)
        self._poll.register(self._stop, select.EPOLLIN)
        threading.Thread(target=self._run, args=(self._poll,), name="exits", daemon=True).start()
        return self._poll

    def _close(self, descriptor: int) -> Job:
        job, pid = self._followed.pop(descriptor)
        self._pids[job].remove(pid)
        if not self._pids[job]:
            del self._pids[job]
        os.close(descriptor)
        self._descriptors.give_back(1)
        return job

    def _run(self, poll: select.epoll) -> None:
        ready: set[int] = set()
        ending: dict[Job, float] = {}  # job → until when it is read repeatedly
        while self._stop not in ready:
            timeout = _AGAIN_SECONDS if ending else None
            ready = {descriptor for descriptor, _ in poll.poll(timeout)}
            with self._lock:
                jobs = {self._close(each) for each in ready if each in self._followed}
                alone = jobs - self._pids.keys()
            now = time.monotonic()
            ending = {
                job: until
                for job, until in ending.items()
                if until > now and self._call(self._ending, job)
            }
            for job in jobs:
                self._call(self._exited, job)
            ending |= dict.fromkeys(alone, now + _ENDING_SECONDS)
        poll.close()
        os.close(self._stop)

    def _call(self, told: Callable[[Job], object], job: Job) -> object:
        try:
            return told(job)
        except Exception as error:  # one odd job must not end the thread
            self._once.warning("exit", "exits: %s: %s", type(error).__name__, error)
            return None
