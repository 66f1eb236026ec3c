"""A job's cgroup: one path, in every hierarchy that has it."""

import errno
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchjob.quantities.reading import EMPTY_CGROUP_READING, CgroupReading
from batchjob.schedulers.layout import LayoutMatch
from collectors.host import read_path
from collectors.jobs.cgroups import v1 as cgroup1
from collectors.jobs.cgroups.directory import CgroupDirectory, FileReader
from collectors.jobs.cgroups.formats import GAUGE_FIELDS, CgroupFile, RawValues, allocated_cpus
from collectors.jobs.cgroups.kernel_log import KernelLog
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.cgroups.reader import ReadErrors, descendants, is_gone

# Limits and CPU sets are changed by administrators and schedulers, not by the job's work. Missing
# files may appear later, when a controller is enabled by hand.
_MAX_REFRESH_SECONDS = 60.0
# Shorter for a new job, while the scheduler sets limits and enables controllers.
_INITIAL_REFRESH_SECONDS = 0.5

# A scheduler removes the directories of a job one by one. If one is missing for longer than this
# while others exist, another user has removed it.
_REMOVAL_SECONDS = 5.0

# The controllers whose hierarchies list a job's processes, best first: Slurm's freezer tree lists
# all of them, cpuacct lacks slurmstepd, and the others usually lack the tree (observed with
# Slurm 22.05 and OpenPBS 23.06).
_CONTROLLERS_LISTING_PIDS = ("freezer", "memory", "cpuacct", "cpuset", "devices", "pids")


class CgroupFiles(NamedTuple):
    """The files to read in a directory, and what all directories share."""

    v1: Mapping[str, tuple[CgroupFile, ...]]
    v2: tuple[CgroupFile, ...]
    descriptors: threading.Semaphore
    kernel_log: KernelLog
    errors: ReadErrors


_NO_VALUES: Mapping[str, Any] = {}


@dataclass(slots=True, eq=False)
class JobCgroup:
    """One path of a job. Not thread-safe: the job has the lock.

    A removed directory's last readings are kept: on v1 the controllers' are removed one by one.
    """

    path: str
    layout_match: LayoutMatch
    delegate: int | None
    _files: CgroupFiles
    reading: CgroupReading = EMPTY_CGROUP_READING
    """The last one."""
    _directories: dict[Hierarchy, CgroupDirectory] = field(default_factory=dict)
    # Last values of removed directories.
    _removed_values: Mapping[str, Any] = field(default_factory=lambda: _NO_VALUES)
    _gauges_expire_at: float = math.inf  # monotonic seconds
    _reader: FileReader | None = None  # of all files
    _next_refresh_at: float = -math.inf  # monotonic seconds
    _refresh_seconds: float = _INITIAL_REFRESH_SECONDS
    _kernel_counts_oom_kills: bool = False  # v1 only, as all of `_oom_kills`
    # The kills that were counted, by subdirectory.
    _oom_kills: Mapping[str, int] = field(default_factory=lambda: _NO_VALUES)
    _kernel_log_position: int = 0
    _has_v1: bool = False

    def __post_init__(self) -> None:
        self._kernel_log_position = self._files.kernel_log.position()

    def add(self, hierarchy: Hierarchy) -> str | None:
        """Add a hierarchy in which the path exists; returns the directory, None if it was known."""
        if hierarchy in self._directories:
            return None
        self._has_v1 |= hierarchy.version == 1
        path = f"{hierarchy.root}/{self.path}"
        shared = (self._files.descriptors, self._files.errors)
        if hierarchy.version == 2:
            directory = CgroupDirectory(path, self._files.v2, *shared, hierarchy.root)
        else:
            files = [f for c in hierarchy.controllers for f in self._files.v1.get(c, ())]
            directory = CgroupDirectory(path, files, *shared)
        self._directories[hierarchy] = directory
        self._next_refresh_at = -math.inf
        self._refresh_seconds = _INITIAL_REFRESH_SECONDS
        return path

    @property
    def is_removed(self) -> bool:
        return not self._directories

    def read(self, now: float, group: str | None = None) -> CgroupReading:
        """Read the existing directories; returns the same reading again if nothing changed."""
        changed = False
        if now >= self._gauges_expire_at:
            self._removed_values = {
                name: x for name, x in self._removed_values.items() if name not in GAUGE_FIELDS
            }
            self._gauges_expire_at = math.inf
            changed = True
        if now >= self._next_refresh_at:
            self._refresh(now)
            changed = True
        if self._read_files(self._file_reader(group), now) or changed:
            self._build_reading()
        return self.reading

    def _file_reader(self, group: str | None) -> FileReader:
        """A reader of one group's files, or of all; only the latter is worth its memory."""
        if group is None and self._reader is not None:
            return self._reader
        directories = self._directories.values()
        reader = FileReader([file for each in directories for file in each.frequent_files(group)])
        if group is None:
            self._reader = reader
        return reader

    def _refresh(self, now: float) -> None:
        """Look for new files, read limits, and drop removed directories."""
        self._next_refresh_at = now + self._refresh_seconds
        self._refresh_seconds = min(2 * self._refresh_seconds, _MAX_REFRESH_SECONDS)
        self._reader = None
        for directory in self._directories.values():
            directory.find_files()
        self.drop_removed(now)
        directories = tuple(self._directories.values())
        limits = [file for each in directories for file in each.files if file.source.rare]
        self._read_files(FileReader(limits), now)
        for directory in directories:
            directory.read_limit()

    def _read_files(self, reader: FileReader, now: float) -> bool:
        changed, failed = reader.read()
        if not failed:
            return changed
        for file, error in failed:
            directory = file.directory
            if not isinstance(error, OSError):
                self._files.errors.count("malformed")
            elif error.errno == errno.ENODEV:
                directory.was_removed = True
            elif not directory.is_removed():
                self._files.errors.count(error)
                directory.drop_file(file)
        if any(isinstance(error, OSError) for _, error in failed):
            # A descriptor was closed, and its number may be reused. Directories without files to
            # read do not report that they were removed as well.
            self._reader = None
            self.drop_removed(now)
        return changed

    def _build_reading(self) -> None:
        values = dict(self._removed_values)
        # In a hybrid hierarchy, v1's cpuacct and v2's cpu.stat both report the CPU time, with
        # different granularity: always use the same one.
        for directory in self._directories.values():
            values.update(directory.values)
        raw = RawValues._make(map(values.get, RawValues._fields))
        values["cpus"] = allocated_cpus(raw)
        if self._has_v1:
            values.update(cgroup1.combine(raw, self.reading.cpu_user_seconds or 0.0))
        if self._kernel_counts_oom_kills or self._oom_kills:
            values["oom_kills"] = sum(self._oom_kills.values())
        self.reading = CgroupReading._make(map(values.get, CgroupReading._fields))

    def drop_removed(self, now: float) -> None:
        for hierarchy, directory in list(self._directories.items()):
            if directory.is_removed():
                self._drop(hierarchy)
                self._gauges_expire_at = now + _REMOVAL_SECONDS

    def populated(self) -> bool | None:
        """Whether it holds processes, according to cgroup v2; None on v1, which does not report it.

        If the kernel cannot say at the moment, the part counts as populated.
        """
        for hierarchy, directory in self._directories.items():
            if hierarchy.version == 2:
                try:
                    return b"populated 1" in read_path(f"{directory.path}/cgroup.events")
                except OSError as error:
                    if is_gone(error):
                        return False
                    self._files.errors.count(error)
                    return True
        return None

    def directories(self) -> list[tuple[Hierarchy, str]]:
        return [(hierarchy, each.path) for hierarchy, each in self._directories.items()]

    def process_root(self) -> str:
        """The directory below which all processes of the part are listed; "" if there is none."""
        hierarchy = min(self._directories, key=_process_list_rank, default=None)
        return "" if hierarchy is None else self._directories[hierarchy].path

    def count_oom_kills(self) -> None:
        """Count the OOM kills in v1's subdirectories, which must be read before their removal.

        Kills in directories that were removed before are in the kernel's log.
        """
        for hierarchy, directory in self._directories.items():
            if "memory" not in hierarchy.controllers:
                continue
            for each in descendants(directory.path, self._files.errors.count):
                try:
                    kills = cgroup1.oom_kills(each)
                except (OSError, ValueError) as error:
                    if not (isinstance(error, OSError) and is_gone(error)):
                        self._files.errors.count(error)
                    continue
                self._kernel_counts_oom_kills |= kills is not None
                if kills:
                    self._oom_kills = {**self._oom_kills, each: kills}
            self._add_logged_oom_kills(hierarchy)
        self._build_reading()

    def close(self) -> None:
        for hierarchy in list(self._directories):
            self._drop(hierarchy)

    def _drop(self, hierarchy: Hierarchy) -> None:
        directory = self._directories.pop(hierarchy)
        self._removed_values = {**self._removed_values, **directory.values}
        self._reader = None  # its descriptors are closed, and their numbers may be reused
        directory.close()
        if "memory" in hierarchy.controllers and self._add_logged_oom_kills(hierarchy):
            self._build_reading()

    def _add_logged_oom_kills(self, hierarchy: Hierarchy) -> bool:
        """Add kills that only the kernel's log has; returns whether there are any."""
        kills_by_directory = dict(self._oom_kills)
        logged = self._files.kernel_log.kills(f"/{self.path}", self._kernel_log_position)
        for victim, kills in logged.items():
            directory = f"{hierarchy.root}{victim}"
            kills_by_directory[directory] = max(kills, kills_by_directory.get(directory, 0))
        if kills_by_directory == self._oom_kills:
            return False
        self._oom_kills = kills_by_directory
        return True


def _process_list_rank(hierarchy: Hierarchy) -> int:
    if hierarchy.version == 2:
        return -1
    ranks = [
        _CONTROLLERS_LISTING_PIDS.index(each)
        for each in hierarchy.controllers
        if each in _CONTROLLERS_LISTING_PIDS
    ]
    return min(ranks, default=len(_CONTROLLERS_LISTING_PIDS))
