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
from collectors.jobs.state.job import Job

log = logging.getLogger(__name__)

_MAX_FOLLOWED = 4  # processes per job: the earliest ones, among them the batch script
_ENDING_POLL_SECONDS = 0.01  # seconds between readings after the last followed process has exited
_ENDING_SECONDS = 0.25  # duration of these readings; slurmstepd takes some milliseconds


class ExitWatcher:
    """Owns the pidfds and the thread, which is started with the first process to follow."""

    def __init__(
        self,
        on_exit: Callable[[Job], object],
        read_ending: Callable[[Job], bool],
        descriptors: threading.Semaphore,
    ) -> None:
        """`on_exit` is called when a followed process of a job has exited.

        `read_ending` reads a job without processes to follow; False when the job has ended.
        """
        self._on_exit = on_exit
        self._read_ending = read_ending
        self._descriptors = descriptors
        self._poll: select.epoll | None = None
        self._stop_event = -1  # an eventfd, once the thread runs
        self._stopped = False
        self._followed: dict[int, tuple[Job, int]] = {}  # pidfd → job, pid
        self._followed_pids: dict[Job, list[int]] = {}  # a few per job
        self._lock = threading.Lock()
        self._once = LogOnce(log)

    def follow(self, job: Job, pids: Iterable[int]) -> None:
        """Call `on_exit` when one of these processes ends; the earliest come first."""
        with self._lock:
            if self._stopped:
                return
            followed = self._followed_pids.setdefault(job, [])
            for pid in pids:
                if len(followed) < _MAX_FOLLOWED and pid not in followed and self._open(job, pid):
                    followed.append(pid)
            if not followed:
                del self._followed_pids[job]

    def stop(self) -> None:
        with self._lock:
            if self._poll is not None and not self._stopped:
                os.eventfd_write(self._stop_event, 1)
            self._stopped = True
            for descriptor in list(self._followed):
                self._close(descriptor)

    def _open(self, job: Job, pid: int) -> bool:
        if not self._descriptors.acquire(blocking=False):
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._descriptors.release()
            return False  # the process has ended, or the kernel is too old
        self._followed[descriptor] = job, pid
        poll = self._poll or self._start()
        poll.register(descriptor, select.EPOLLIN)
        return True

    def _start(self) -> select.epoll:
        self._poll = select.epoll()
        self._stop_event = os.eventfd(0)
        self._poll.register(self._stop_event, select.EPOLLIN)
        threading.Thread(target=self._run, args=(self._poll,), name="exits", daemon=True).start()
        return self._poll

    def _close(self, descriptor: int) -> Job:
        job, pid = self._followed.pop(descriptor)
        self._followed_pids[job].remove(pid)
        if not self._followed_pids[job]:
            del self._followed_pids[job]
        os.close(descriptor)
        self._descriptors.release()
        return job

    def _run(self, poll: select.epoll) -> None:
        ready: set[int] = set()
        ending: dict[Job, float] = {}  # job → until when it is read repeatedly
        while self._stop_event not in ready:
            timeout = _ENDING_POLL_SECONDS if ending else None
            ready = {descriptor for descriptor, _ in poll.poll(timeout)}
            with self._lock:
                jobs = {self._close(each) for each in ready if each in self._followed}
                unfollowed = jobs - self._followed_pids.keys()
            now = time.monotonic()
            ending = {
                job: until
                for job, until in ending.items()
                if until > now and self._call(self._read_ending, job)
            }
            for job in jobs:
                self._call(self._on_exit, job)
            ending |= dict.fromkeys(unfollowed, now + _ENDING_SECONDS)
        poll.close()
        os.close(self._stop_event)

    def _call(self, callback: Callable[[Job], object], job: Job) -> object:
        try:
            return callback(job)
        except Exception as error:  # keep the thread alive if one job fails
            self._once.warning("exit", "exits: %s: %s", type(error).__name__, error)
            return None
