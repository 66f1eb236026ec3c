"""A thread that is notified when jobs begin and end, so that short ones are seen.

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
_DEEPEST = 3  # levels below a job's directory: step, user, task


class CgroupWatcher:
    """Owns the inotify instance and its thread.

    `complete` is False if the kernel refused a watch: jobs are then found by scrapes alone.
    """

    def __init__(self, registry: JobTable, born: Callable[[], None], errors: ReadErrors) -> None:
        self.complete = True
        self.walker: CgroupWalker | None = None
        self._registry = registry
        self._born = born
        self._errors = errors
        self._branches: dict[int, WalkState] = {}
        self._jobs: dict[int, tuple[Job, str, int]] = {}  # watch → (job, directory, depth in it)
        self._places: dict[str, Job] = {}  # path of a job's own directory → job
        self._numbers: dict[str, int] = {}  # path → number of its watch
        self._inotify = self._open()
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

    def branch(self, branch: WalkState) -> None:
        """Watch a directory that may lead to jobs."""
        number = self._add(branch.absolute, _DIRECTORIES)
        if number is not None:
            self._branches[number] = branch

    def job(self, job: Job, hierarchy: Hierarchy, path: str) -> None:
        """Watch a directory of a job for its end."""
        self._places[path] = job
        if hierarchy.version == 2:
            number = self._add(f"{path}/cgroup.events", inotify.MODIFY)
            if number is not None:
                self._jobs[number] = (job, path, 0)
        else:
            self._watch_inside(job, path, 0)
        self._born()

    def _watch_inside(self, job: Job, path: str, depth: int) -> None:
        top = path.count("/") - depth
        for each in descendants(path):
            below = each.count("/") - top
            number = self._add(each, _DIRECTORIES) if below <= _DEEPEST else None
            if number is not None:
                self._jobs[number] = (job, each, below)

    def _add(self, path: str, mask: int) -> int | None:
        if self._inotify is None:
            return None
        try:
            number = self._numbers[path] = self._inotify.add(path, mask)
            return number
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self.complete = False
                self._once.warning("refused", "inotify: %s; jobs are found only at scrapes", error)
            return None

    def _open(self) -> Inotify | None:
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
                self._handle(events)
            except Exception as error:  # one odd directory must not end the thread
                self._once.warning("handle", "watcher: %s: %s", type(error).__name__, error)
                self._errors.count("watch")

    def _handle(self, events: Iterable[Event]) -> None:
        """Handle ends first: a job's numbers can be read for milliseconds only."""
        births: list[tuple[WalkState, str]] = []
        touched: dict[Job, bool] = {}  # job → whether a directory was removed
        for event in events:
            if event.mask & inotify.OVERFLOW:
                self._look_again(touched)
            elif event.mask & inotify.IGNORED:
                self._drop(event.watch)
            elif event.watch in self._jobs:
                self._inside(event, touched)
            elif event.watch in self._branches and event.mask & inotify.ISDIR:
                branch = self._branches[event.watch]
                if event.mask & inotify.CREATE:
                    births.append((branch, event.name))
                else:
                    self._removed(f"{branch.absolute}/{event.name}", touched)
        for job, removed in touched.items():
            self._registry.removed(job) if removed else self._populated(job)
        for branch, name in births:
            self._appeared(branch, name)

    def _inside(self, event: Event, touched: dict[Job, bool]) -> None:
        job, directory, depth = self._jobs[event.watch]
        if event.mask & inotify.CREATE:
            self._watch_inside(job, f"{directory}/{event.name}", depth + 1)
        removed = bool(event.mask & inotify.DELETE)
        if removed:
            self._give_back(f"{directory}/{event.name}")
        touched[job] = touched.get(job, False) or removed

    def _removed(self, path: str, touched: dict[Job, bool]) -> None:
        self._give_back(path)
        job = self._places.pop(path, None)
        if job is not None:
            touched[job] = True

    def _give_back(self, path: str) -> None:
        """Remove the watches on a removed directory.

        cgroupfs does not notify of the removal of what was watched (its inodes keep their link
        count), and the number of watches is limited.
        """
        for each in (path, f"{path}/cgroup.events"):
            if each in self._numbers and not os.path.lexists(each):
                number = self._numbers.pop(each)
                self._drop(number)
                if self._inotify is not None:
                    self._inotify.remove(number)

    def _drop(self, number: int) -> None:
        self._branches.pop(number, None)
        self._jobs.pop(number, None)

    def _populated(self, job: Job) -> None:
        populated = job.populated()
        if populated:
            job.revive()
            job.read(self._registry.host.monotonic())  # a part may be empty and soon removed
            self._born()
        elif populated is False:
            job.end(self._registry.host.now())

    def _appeared(self, branch: WalkState, name: str) -> None:
        assert self.walker is not None
        below = self.walker.visit(branch, name, born=True)
        if below is not None:
            self.walker.walk(below, born=True)

    def _look_again(self, touched: dict[Job, bool]) -> None:
        """Walk the trees again after the kernel's queue overflowed."""
        assert self.walker is not None
        for path in list(self._numbers):
            self._give_back(path)
        self.walker.look(born=True)
        touched.update(dict.fromkeys(self._registry.running(), True))
