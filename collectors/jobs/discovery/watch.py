"""A thread that is notified when jobs begin and end, so that short jobs are found.

On cgroup v2, `populated` in a job's cgroup.events turns 0 when its last process has ended, and the
kernel notifies of that (cgroup-v2.rst, "[Un]populated Notification"). v1 has no such notification;
there the first removal of a directory inside the job announces the end: with a real Slurm 22.05 it
comes 6 to 20 ms before the removal of the job's own directory.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable

from batchjob.runtime.log import LogOnce
from collectors.jobs.cgroups.directory import ReadErrors, descendants
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.discovery import inotify
from collectors.jobs.discovery.inotify import Event, Inotify
from collectors.jobs.discovery.walk import CgroupWalker, WalkState
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import JobTable

log = logging.getLogger(__name__)

_DIRECTORIES = inotify.CREATE | inotify.DELETE | inotify.ONLYDIR
_MAX_DEPTH_IN_JOB = 3  # levels below a job's directory: step, user, task


class CgroupWatcher:
    """Owns the inotify instance and its thread.

    `complete` is False if the kernel refused a watch: jobs are then found by scrapes alone.
    """

    def __init__(self, table: JobTable, on_new_job: Callable[[], None], errors: ReadErrors) -> None:
        self.complete = True
        self.walker: CgroupWalker | None = None
        self._table = table
        self._on_new_job = on_new_job
        self._errors = errors
        self._branches: dict[int, WalkState] = {}
        # Number of the watch → job, directory, and depth of the directory in the job.
        self._watched_jobs: dict[int, tuple[Job, str, int]] = {}
        self._jobs_by_path: dict[str, Job] = {}  # path of a job's own directory → job
        self._watch_numbers: dict[str, int] = {}  # path → number of its watch
        self._inotify = self._open_inotify()
        self._once = LogOnce(log)
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start watching."""
        if self._inotify is not None:
            self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove the watches."""
        self._stopped = True
        if self._inotify is not None:
            self._inotify.interrupt()
            if self._thread is not None:
                self._thread.join(timeout=5)
            self._inotify.close()
            self._inotify = None

    def watch_branch(self, branch: WalkState) -> None:
        """Watch a directory that may contain jobs."""
        number = self._add_watch(branch.absolute, _DIRECTORIES)
        if number is not None:
            self._branches[number] = branch

    def watch_job(self, job: Job, hierarchy: Hierarchy, path: str) -> None:
        """Watch a directory of a job, to be notified of the job's end."""
        self._jobs_by_path[path] = job
        if hierarchy.version == 2:
            number = self._add_watch(f"{path}/cgroup.events", inotify.MODIFY)
            if number is not None:
                self._watched_jobs[number] = (job, path, 0)
        else:
            self._watch_inside(job, path, 0)
        self._on_new_job()

    def _watch_inside(self, job: Job, path: str, depth: int) -> None:
        job_depth = path.count("/") - depth
        for each in descendants(path):
            below = each.count("/") - job_depth
            number = self._add_watch(each, _DIRECTORIES) if below <= _MAX_DEPTH_IN_JOB else None
            if number is not None:
                self._watched_jobs[number] = (job, each, below)

    def _add_watch(self, path: str, mask: int) -> int | None:
        if self._inotify is None:
            return None
        try:
            number = self._watch_numbers[path] = self._inotify.add(path, mask)
            return number
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self.complete = False
                self._once.warning("refused", "inotify: %s; jobs are found only at scrapes", error)
            return None

    def _open_inotify(self) -> Inotify | None:
        try:
            return Inotify()
        except OSError as error:
            self.complete = False
            log.warning("inotify: %s; jobs are found only at scrapes", error)
            return None

    def _run(self) -> None:
        assert self._inotify is not None
        while not self._stopped:
            events = self._inotify.wait()
            try:
                self._apply(events)
            except Exception as error:  # one odd directory must not end the thread
                self._once.warning("handle", "watcher: %s: %s", type(error).__name__, error)
                self._errors.count("watch")

    def _apply(self, events: Iterable[Event]) -> None:
        """Process ended jobs first: their cgroups can be read for some milliseconds only."""
        new_directories: list[tuple[WalkState, str]] = []
        affected_jobs: dict[Job, bool] = {}  # job → whether a directory was removed
        for event in events:
            if event.mask & inotify.OVERFLOW:
                self._recover_from_overflow(affected_jobs)
            elif event.mask & inotify.IGNORED:
                self._forget_watch(event.watch)
            elif event.watch in self._watched_jobs:
                self._update_inside(event, affected_jobs)
            elif event.watch in self._branches and event.mask & inotify.ISDIR:
                branch = self._branches[event.watch]
                if event.mask & inotify.CREATE:
                    new_directories.append((branch, event.name))
                else:
                    self._mark_removed(f"{branch.absolute}/{event.name}", affected_jobs)
        for job, removed in affected_jobs.items():
            self._table.read_after_removal(job) if removed else self._update_populated(job)
        for branch, name in new_directories:
            self._visit_new(branch, name)

    def _update_inside(self, event: Event, affected_jobs: dict[Job, bool]) -> None:
        job, directory, depth = self._watched_jobs[event.watch]
        if event.mask & inotify.CREATE:
            self._watch_inside(job, f"{directory}/{event.name}", depth + 1)
        removed = bool(event.mask & inotify.DELETE)
        if removed:
            self._remove_watches(f"{directory}/{event.name}")
        affected_jobs[job] = affected_jobs.get(job, False) or removed

    def _mark_removed(self, path: str, affected_jobs: dict[Job, bool]) -> None:
        self._remove_watches(path)
        job = self._jobs_by_path.pop(path, None)
        if job is not None:
            affected_jobs[job] = True

    def _remove_watches(self, path: str) -> None:
        """Remove the watches on a removed directory.

        cgroupfs does not notify of the removal of what was watched (its inodes keep their link
        count), and the number of watches is limited.
        """
        for each in (path, f"{path}/cgroup.events"):
            if each in self._watch_numbers and not os.path.lexists(each):
                number = self._watch_numbers.pop(each)
                self._forget_watch(number)
                if self._inotify is not None:
                    self._inotify.remove(number)

    def _forget_watch(self, number: int) -> None:
        self._branches.pop(number, None)
        self._watched_jobs.pop(number, None)

    def _update_populated(self, job: Job) -> None:
        populated = job.populated()
        if populated:
            job.revive()
            job.read(self._table.host.monotonic())  # a part may be empty and soon removed
            self._on_new_job()
        elif populated is False:
            job.end(self._table.host.now())

    def _visit_new(self, branch: WalkState, name: str) -> None:
        assert self.walker is not None
        below = self.walker.visit(branch, name, is_new=True)
        if below is not None:
            self.walker.walk(below, is_new=True)

    def _recover_from_overflow(self, affected_jobs: dict[Job, bool]) -> None:
        """Walk all trees, since the kernel's queue overflowed and events were lost."""
        assert self.walker is not None
        for path in list(self._watch_numbers):
            self._remove_watches(path)
        self.walker.walk_all(is_new=True)
        affected_jobs.update(dict.fromkeys(self._table.running(), True))
