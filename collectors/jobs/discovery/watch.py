"""A thread that is notified when jobs begin and end, so that short jobs are found.

On cgroup v2, `populated` in a job's cgroup.events turns 0 when its last process has ended, and the
kernel notifies of that (cgroup-v2.rst, "[Un]populated Notification"). v1 has no such notification;
there the first removal of a directory inside the job announces the end: with a real Slurm 22.05 it
comes 6 to 20 ms before the removal of the job's own directory.
"""

import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from batchjob.runtime.log import LogOnce
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.cgroups.reader import ReadErrors, child_names
from collectors.jobs.discovery import inotify
from collectors.jobs.discovery.inotify import Event, Inotify
from collectors.jobs.discovery.walk import CgroupWalker, WalkState
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import JobTable

log = logging.getLogger(__name__)

_DIRECTORIES = inotify.APPEARED | inotify.DISAPPEARED | inotify.ONLYDIR
_MAX_DEPTH_IN_JOB = 3  # levels below a job's directory: step, user, task


@dataclass(slots=True, eq=False)
class _JobDirectory:
    """A job's own directory in one hierarchy, and the watches in it.

    A node can have tens of thousands of watches. To save memory, a watch has no path of its own but
    a suffix of the job's path, in a string that is shared with other jobs.
    """

    job: Job
    path: str
    # "" or "/step_0/task_0" → number of the watch
    numbers: dict[str, int] = field(default_factory=dict)

    def suffix(self, number: int) -> str:
        numbers = list(self.numbers.items())  # another thread may be adding watches
        return next(suffix for suffix, each in numbers if each == number)


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
        self._branches: dict[int, WalkState] = {}  # by number of the watch
        self._branch_numbers: dict[str, int] = {}  # path → number of its watch
        self._watched_jobs: dict[int, _JobDirectory] = {}  # by number of the watch
        self._job_directories: dict[str, _JobDirectory] = {}  # by path
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except OSError as error:
            self.complete = False
            log.warning("inotify: %s; jobs are found only at scrapes", error)
        self._once = LogOnce(log)
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._inotify is not None:
            self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        if self._inotify is not None:
            self._inotify.interrupt()
            if self._thread is not None:
                self._thread.join(timeout=5)
            self._inotify.close()
            self._inotify = None

    def watch_branch(self, branch: WalkState) -> None:
        path = branch.absolute
        number = self._add_watch(path, _DIRECTORIES)
        if number is not None:
            self._register(self._branch_numbers, path, number)
            self._branches[number] = branch

    def watch_job(self, job: Job, hierarchy: Hierarchy, path: str) -> None:
        """Watch a directory of a job, to be notified of the job's end."""
        previous = self._job_directories.get(path)
        directory = self._job_directories[path] = _JobDirectory(job, path)
        if hierarchy.version == 2:
            self._watch_in_job(directory, "/cgroup.events", inotify.MODIFY)
        else:
            self._watch_below(directory, "")
        if previous is not None:  # of a directory that had the same path before
            for number in set(previous.numbers.values()) - set(directory.numbers.values()):
                self._drop_watch(number)
        self._on_new_job()

    def _watch_below(self, directory: _JobDirectory, suffix: str) -> None:
        """Watch a directory, and then list its children, so that none is missed."""
        if suffix.count("/") > _MAX_DEPTH_IN_JOB:
            return
        self._watch_in_job(directory, suffix, _DIRECTORIES)
        for name in child_names(directory.path + suffix):
            self._watch_below(directory, f"{suffix}/{name}")

    def _watch_in_job(self, directory: _JobDirectory, suffix: str, mask: int) -> None:
        number = self._add_watch(directory.path + suffix, mask)
        if number is not None:
            self._register(directory.numbers, sys.intern(suffix), number)
            self._watched_jobs[number] = directory

    def _register(self, numbers: dict[str, int], key: str, number: int) -> None:
        """Register a watch, and remove that of a directory which had the same path before."""
        previous = numbers.get(key, number)
        numbers[key] = number
        if previous != number:
            self._drop_watch(previous)

    def _add_watch(self, path: str, mask: int) -> int | None:
        if self._inotify is None:
            return None
        try:
            return self._inotify.add(path, mask)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self.complete = False
                self._once.warning("refused", "inotify: %s; jobs are found only at scrapes", error)
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
                continue
            if event.mask & inotify.IGNORED:
                self._forget_watch(event.watch)
                continue
            if event.watch in self._watched_jobs:
                self._update_inside(event, affected_jobs)
            # A pod is a job and leads to jobs: the kernel has one watch for both.
            if event.watch in self._branches and event.mask & inotify.ISDIR:
                branch = self._branches[event.watch]
                if event.mask & inotify.APPEARED:
                    new_directories.append((branch, event.name))
                else:
                    self._mark_removed(f"{branch.absolute}/{event.name}", affected_jobs)
        for job, removed in affected_jobs.items():
            if removed:
                job.read_remaining(self._table.host.now())
            else:
                self._update_populated(job)
        for branch, name in new_directories:
            self._visit_new(branch, name)

    def _update_inside(self, event: Event, affected_jobs: dict[Job, bool]) -> None:
        directory = self._watched_jobs[event.watch]
        suffix = f"{directory.suffix(event.watch)}/{event.name}"
        if event.mask & inotify.APPEARED:
            self._watch_below(directory, suffix)
        removed = bool(event.mask & inotify.DISAPPEARED)
        if removed:
            self._remove_watches(directory, suffix)
        affected_jobs[directory.job] = affected_jobs.get(directory.job, False) or removed

    def _mark_removed(self, path: str, affected_jobs: dict[Job, bool]) -> None:
        """Mark the jobs in a directory that was removed, or renamed with all that is in it.

        OpenPBS' hook renames the directory of a job that it could not launch before it removes it.
        """
        jobs = [path]
        if path in self._branch_numbers:
            for branch in _below(path, self._branch_numbers):
                self._remove_watch("", self._branch_numbers, branch)
            jobs = _below(path, self._job_directories)
        for each in jobs:
            directory = self._job_directories.get(each)
            if directory is not None:
                affected_jobs[directory.job] = True
                self._remove_watches(directory, "")
                if not directory.numbers:  # otherwise the path exists again
                    del self._job_directories[each]

    def _remove_watches(self, directory: _JobDirectory, suffix: str) -> None:
        for each in _below(suffix, directory.numbers):
            self._remove_watch(directory.path, directory.numbers, each)

    def _remove_watch(self, path: str, numbers: dict[str, int], suffix: str) -> None:
        """Remove the watch on a removed directory or file.

        cgroupfs does not notify of the removal of what was watched (its inodes keep their link
        count), and the number of watches is limited.
        """
        if suffix in numbers and not os.path.lexists(path + suffix):
            self._drop_watch(numbers.pop(suffix))

    def _drop_watch(self, number: int) -> None:
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
            job.read(self._table.host.now())  # a part may be empty and soon removed
            self._on_new_job()
        elif populated is False:
            job.end_if_empty(self._table.host.now())

    def _visit_new(self, branch: WalkState, name: str) -> None:
        assert self.walker is not None
        below = self.walker.visit(branch, name, is_new=True)
        if below is not None:
            self.walker.walk(below, is_new=True)

    def _recover_from_overflow(self, affected_jobs: dict[Job, bool]) -> None:
        """Walk all trees, since the kernel's queue overflowed and events were lost."""
        assert self.walker is not None
        for path in list(self._branch_numbers):
            self._remove_watch("", self._branch_numbers, path)
        for directory in list(self._job_directories.values()):
            self._remove_watches(directory, "")
        self.walker.walk_all(is_new=True)
        affected_jobs.update(dict.fromkeys(self._table.running(), True))


def _below(path: str, paths: Iterable[str]) -> list[str]:
    """The path itself and those below it; another thread may be adding paths."""
    return [each for each in list(paths) if each == path or each.startswith(f"{path}/")]
