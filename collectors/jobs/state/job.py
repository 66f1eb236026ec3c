"""One job: its directories, their last readings, its identity, and whether it has ended."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from batchjob.quantities.reading import (
    EMPTY_CGROUP_READING,
    NO_PROCESS_READING,
    CgroupReading,
    FileSystemIO,
    ProcessReading,
    keep_counters,
    sum_readings,
)
from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from collectors.host import Moment
from collectors.jobs.cgroups.job_cgroup import CgroupFiles, JobCgroup
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.cgroups.reader import descendants, read_pids
from collectors.jobs.view import JobIdentity

SETTLING_SECONDS = 2.0  # for this long, directories of a new job may appear one by one


class JobScan(NamedTuple):
    """The result of the last scan of a job's processes; `at` is its time in monotonic seconds."""

    at: float
    processes: ProcessReading
    pids: tuple[int, ...]
    environs: tuple[Mapping[str, str], ...]
    cpus: int | None = None  # on this node, from the environment


@dataclass(frozen=True, eq=False)
class ProcessRoot:
    """A part of a job, and the directory below which its processes are listed."""

    path: str
    layout_match: LayoutMatch
    delegate: int | None
    directory: str


@dataclass(slots=True, eq=False)
class Job:
    """One job of this node, with all directories of its parts.

    Directories and descriptors are protected by its lock. `reading` is the last one; `identity`,
    `last_scan` and `file_systems` are immutable values that the scanner's thread rebinds.
    """

    layout_match: LayoutMatch
    appeared: Moment | None  # None: it existed before the exporter
    started: Moment | None
    _files: CgroupFiles
    ended: Moment | None = None
    identity: JobIdentity | None = None
    last_scan: JobScan | None = None
    file_systems: Mapping[str, FileSystemIO] = field(default_factory=dict)  # by type
    shares_file_systems: bool = False  # now, or at its end
    ignored_reason: str | None = None  # why it is not exposed: conflict, untrusted
    delegated: bool = False
    """A part is in a tree delegated to a user, who can imitate any job there."""
    reading: CgroupReading = EMPTY_CGROUP_READING
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parts: dict[str, JobCgroup] = field(default_factory=dict)
    # Of parts that were removed while others exist.
    _removed_readings: tuple[CgroupReading, ...] = ()
    _has_cgroup_cpu: bool = False  # whether a cgroup has reported its CPU time

    def add(
        self, hierarchy: Hierarchy, path: str, layout_match: LayoutMatch, delegate: int | None
    ) -> str | None:
        """Add a directory of this job; returns its absolute path, None if it was added before.

        `delegate` is the user to whom the scheduler delegated it, if it is not root's.
        """
        self.delegated |= delegate is not None and layout_match.uid != delegate
        with self._lock:
            part = self._parts.get(path)
            if part is None:
                part = self._parts[path] = JobCgroup(path, layout_match, delegate, self._files)
            return part.add(hierarchy)

    def read(self, now: Moment, group: str | None = None) -> CgroupReading:
        """Read every directory, or one group of its files; counts of removed ones are kept.

        The job ends when no directory of it is left. The lock covers reading and closing: a
        descriptor closed during another thread's pread() is reused by the next open(), and this job
        would show another job's numbers.
        """
        with self._lock:
            if self.ended is None:
                self._read_parts(now, group)
            return self.reading

    def end_if_empty(self, now: Moment) -> None:
        """End a job without processes, unless its cgroup stays empty between two of its tasks."""
        self.read_remaining(now)
        with self._lock:
            if self.ended is None and not self.may_be_empty:
                self.ended = now

    def count_oom_kills(self) -> None:
        """Count OOM kills on v1, in the directories of tasks, before they are removed."""
        with self._lock:
            self._count_oom_kills()

    def revive(self) -> None:
        """Mark an ended job as running: it has processes again, as between interactive steps."""
        with self._lock:
            if self._parts:
                self.ended = None

    @property
    def may_be_empty(self) -> bool:
        """Whether the job goes on while it has no processes on this node."""
        return registry.job_manager(self.layout_match.manager).may_be_empty

    def read_remaining(self, now: Moment) -> bool:
        """Read the remaining directories after a removal; without any, the job has ended."""
        with self._lock:
            if self.ended is None:
                self._count_oom_kills()
                self._read_parts(now, None)
            self._drop_removed(now)
            return bool(self._parts)

    def has_vanished(self, now: Moment) -> bool:
        """Whether it had directories and none of them is left."""
        with self._lock:
            self._drop_removed(now)
            return not self._parts

    def populated(self) -> bool | None:
        """Whether any part holds processes; None if the kernel does not report it (v1)."""
        with self._lock:
            answers = [part.populated() for part in self._parts.values()]
        return True if True in answers else (None if None in answers else False)

    def is_empty(self) -> bool:
        """Whether it has no processes; False if that is not known."""
        populated = self.populated()
        if populated is not None:
            return not populated
        errors: list[Exception] = []
        for root in self.process_roots():
            if read_pids(descendants(root.directory, errors.append), errors.append):
                return False
        return not errors

    def process_roots(self) -> list[ProcessRoot]:
        """The directories below which the processes of each part are listed."""
        with self._lock:
            roots = [
                ProcessRoot(part.path, part.layout_match, part.delegate, part.process_root())
                for part in self._parts.values()
            ]
        return [root for root in roots if root.directory]

    def directories(self) -> list[tuple[Hierarchy, str]]:
        with self._lock:
            return [place for part in self._parts.values() for place in part.directories()]

    def close(self) -> None:
        with self._lock:
            for part in self._parts.values():
                part.close()
            self._parts.clear()

    def processes(self, now: float, fresh_seconds: float) -> ProcessReading:
        """The processes of the last scan; of a running job, only if the scan is recent."""
        scan = self.last_scan
        if scan is None or (self.ended is None and now - scan.at > fresh_seconds):
            return NO_PROCESS_READING
        return scan.processes

    def is_counted_by_processes(self, now: float) -> bool:
        """Whether the job's CPU time is that of its processes because no cgroup of it counts any.

        `now` is monotonic seconds. The directory that counts may appear after the others, and its
        number may be less than the sum over processes, which is in ticks.
        """
        appeared = None if self.ended is not None else self.appeared
        is_settled = appeared is None or now - appeared.monotonic >= SETTLING_SECONDS
        return is_settled and not self._has_cgroup_cpu

    def _read_parts(self, now: Moment, group: str | None) -> None:
        readings = [part.read(now.monotonic, group) for part in self._parts.values()]
        if readings:
            self.reading = sum_readings([*self._removed_readings, *readings])
            self._has_cgroup_cpu = self._has_cgroup_cpu or self.reading.cpu_user_seconds is not None
        self._forget_removed_parts(now)

    def _drop_removed(self, now: Moment) -> None:
        for part in self._parts.values():
            part.drop_removed(now.monotonic)
        self._forget_removed_parts(now)

    def _forget_removed_parts(self, now: Moment) -> None:
        for path in [path for path, part in self._parts.items() if part.is_removed]:
            self._removed_readings += (keep_counters(self._parts.pop(path).reading),)
        if not self._parts and self.ended is None:
            self.ended = now

    def _count_oom_kills(self) -> None:
        for part in self._parts.values():
            part.count_oom_kills()
