"""One job: its directories, their last readings, its identity, and whether it has ended."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from batchjob.quantities.reading import (
    NOTHING,
    UNSEEN,
    CgroupReading,
    ProcessReading,
    ended,
    total,
)
from batchjob.schedulers.layout import LayoutMatch
from collectors.host import Moment
from collectors.jobs.cgroups.directory import descendants, pids_of
from collectors.jobs.cgroups.job_cgroup import CgroupFiles, JobCgroup
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.state.job_identity import JobIdentity

SETTLING_SECONDS = 2.0  # for this long, directories of a new job may appear one by one


class JobScan(NamedTuple):
    """What the scanner saw of a job's processes, and when (monotonic seconds)."""

    at: float
    processes: ProcessReading
    pids: tuple[int, ...]
    environs: tuple[Mapping[str, str], ...]
    cpus: int | None = None  # on this node, from the environment


@dataclass(frozen=True, eq=False)
class ProcessRoot:
    """A part of a job, and the directory below which its processes are."""

    path: str
    found: LayoutMatch
    delegate: int | None
    directory: str


class Job:
    """One job of this node, with all directories of its parts.

    Directories and descriptors are protected by its lock. `reading` is the last one; `identity` and
    `seen` are immutable values that the scanner's thread rebinds.
    """

    __slots__ = (
        "_counted", "_files", "_gone", "_lock", "_parts", "delegated", "disbelieved", "ended",
        "found", "identity", "noticed", "reading", "seen", "started",
    )  # fmt: skip

    def __init__(self, found: LayoutMatch, now: Moment, born: bool, files: CgroupFiles) -> None:
        self.found = found
        self.noticed = now if born else None  # None: it existed before the exporter
        self.started = None if found.started_at is None else now.at(found.started_at)
        self.ended: Moment | None = None
        self.identity: JobIdentity | None = None
        self.seen: JobScan | None = None
        self.disbelieved: str | None = None  # why it is not exposed: conflict, untrusted
        # A part is in a tree delegated to a user, who can imitate any job there.
        self.delegated = False
        self._files = files
        self._lock = threading.Lock()
        self._parts: dict[str, JobCgroup] = {}
        self._gone: list[CgroupReading] = []  # of parts removed while others exist
        self.reading = NOTHING
        self._counted = False  # whether a cgroup has reported its CPU time

    def add(
        self, hierarchy: Hierarchy, path: str, found: LayoutMatch, delegate: int | None
    ) -> bool:
        """Add a directory of this job; False if it was known already.

        `delegate` is the user to whom the scheduler delegated it, if it is not root's.
        """
        self.delegated |= delegate is not None and found.uid != delegate
        with self._lock:
            part = self._parts.get(path)
            if part is None:
                part = self._parts[path] = JobCgroup(path, found, delegate, self._files)
            return part.add(hierarchy)

    def read(self, now: float, group: str | None = None) -> CgroupReading:
        """Read every directory, or one group of its files; counts of removed ones are kept.

        The lock covers reading and closing: a descriptor closed during another thread's pread() is
        reused by the next open(), and this job would show another job's numbers.
        """
        with self._lock:
            if self.ended is None:
                self._read(now, group)
            return self.reading

    def end(self, now: Moment) -> None:
        """Read the final values and keep them."""
        with self._lock:
            if self.ended is None:
                self._count_oom_kills()
                self._read(now.monotonic, None)
                self.ended = now

    def count_oom_kills(self) -> None:
        """Count OOM kills on v1, in the directories of tasks, which must be read in time."""
        with self._lock:
            self._count_oom_kills()

    def revive(self) -> None:
        """The job has processes again, for example between two steps of an interactive job."""
        with self._lock:
            if self._parts:
                self.ended = None

    def check(self, now: float) -> bool:
        """Read what is left after a removal; False if no directory is."""
        with self._lock:
            if self.ended is None:
                self._count_oom_kills()
                self._read(now, None)
            self._drop_removed(now)
            return bool(self._parts)

    def vanished(self, now: float) -> bool:
        """Whether it had directories and none of them is left."""
        with self._lock:
            self._drop_removed(now)
            return not self._parts

    def populated(self) -> bool | None:
        """Whether any part holds processes; None if the kernel does not report it (v1)."""
        with self._lock:
            answers = [part.populated() for part in self._parts.values()]
        return True if True in answers else (None if None in answers else False)

    def empty(self) -> bool:
        """Whether no process is in it; False if that is not known."""
        populated = self.populated()
        if populated is not None:
            return not populated
        errors: list[Exception] = []
        for tree in self.trees():
            if pids_of(descendants(tree.directory, errors.append), errors.append):
                return False
        return not errors

    def trees(self) -> list[ProcessRoot]:
        """The directories in which the processes of each part are listed."""
        with self._lock:
            trees = [
                ProcessRoot(part.path, part.found, part.delegate, part.process_tree())
                for part in self._parts.values()
            ]
        return [tree for tree in trees if tree.directory]

    def directories(self) -> list[tuple[Hierarchy, str]]:
        """The job's directories: hierarchy and absolute path."""
        with self._lock:
            return [place for part in self._parts.values() for place in part.directories()]

    def close(self) -> None:
        """Close every descriptor."""
        with self._lock:
            for part in self._parts.values():
                part.close()
            self._parts.clear()

    def processes(self, now: float, fresh_seconds: float) -> ProcessReading:
        """What the scanner saw; for a running job, only if it is recent."""
        seen = self.seen
        if seen is None or (self.ended is None and now - seen.at > fresh_seconds):
            return UNSEEN
        return seen.processes

    def counted_by_processes(self, now: float) -> bool:
        """Whether the job's CPU time is that of its processes because no cgroup of it counts any.

        `now` is monotonic seconds. The directory that counts may appear after the others, and its
        number may be less than the sum over processes, which is in ticks.
        """
        born = None if self.ended is not None else self.noticed
        settled = born is None or now - born.monotonic >= SETTLING_SECONDS
        return settled and not self._counted

    def _read(self, now: float, group: str | None) -> None:
        readings = [part.read(now, group) for part in self._parts.values()]
        if readings:
            self.reading = total([*self._gone, *readings])
            self._counted = self._counted or self.reading.cpu_user_seconds is not None
        self._forget_gone()

    def _drop_removed(self, now: float) -> None:
        for part in self._parts.values():
            part.drop_removed(now)
        self._forget_gone()

    def _forget_gone(self) -> None:
        for path in [path for path, part in self._parts.items() if part.gone]:
            self._gone.append(ended(self._parts.pop(path).reading()))

    def _count_oom_kills(self) -> None:
        for part in self._parts.values():
            part.count_oom_kills()
