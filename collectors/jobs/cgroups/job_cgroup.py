"""A job's cgroup: one path, in every hierarchy that has it."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchjob.quantities.reading import NOTHING, CgroupReading
from batchjob.schedulers.layout import LayoutMatch
from collectors.jobs.cgroups import v1 as cgroup1
from collectors.jobs.cgroups import v2 as cgroup2
from collectors.jobs.cgroups.devices import DeviceNames
from collectors.jobs.cgroups.directory import (
    CgroupDirectory,
    CgroupGone,
    DescriptorBudget,
    ReadErrors,
    descendants,
    is_gone,
)
from collectors.jobs.cgroups.fields import PASSING, CgroupParts, allocated_cpus
from collectors.jobs.cgroups.kernel_log import KernelLog
from collectors.jobs.cgroups.mounts import Hierarchy
from collectors.jobs.cgroups.reader import BatchReader, CgroupFile, read_path

# A scheduler removes the directories of a job one by one. If one is missing for longer than this
# while others exist, another user has removed it.
_REMOVAL_SECONDS = 5.0

# Where to look for a job's processes, best first: Slurm's freezer tree contains all of them,
# cpuacct lacks slurmstepd, and the others usually lack the tree (seen with Slurm 22.05 and OpenPBS
# 23.06).
_PIDS_FROM = ("freezer", "memory", "cpuacct", "cpuset", "devices", "pids")


class CgroupFiles(NamedTuple):
    """The files to read in a directory, and what all directories share."""

    v1: Mapping[str, tuple[CgroupFile, ...]]
    v2: tuple[CgroupFile, ...]
    descriptors: DescriptorBudget
    kernel_log: KernelLog
    errors: ReadErrors


def cgroup_files(
    groups: frozenset[str],
    devices: DeviceNames,
    descriptors: DescriptorBudget,
    kernel_log: KernelLog,
    errors: ReadErrors,
) -> CgroupFiles:
    """The files of the wanted metric groups."""
    return CgroupFiles(
        cgroup1.sources(groups, devices),
        cgroup2.sources(groups, devices),
        descriptors,
        kernel_log,
        errors,
    )


class JobCgroup:
    """One path of a job. Not thread-safe: the job has the lock.

    The last readings of a removed directory are kept: on v1 the controllers' directories are
    removed one by one.
    """

    __slots__ = (
        "_born_at", "_cpu_user_seconds", "_directories", "_files", "_glances", "_has_v1", "_kept",
        "_kept_gauges_until", "_oom_kills", "_reading", "_settle_at", "delegate", "found", "path",
    )  # fmt: skip

    def __init__(
        self, path: str, found: LayoutMatch, delegate: int | None, files: CgroupFiles
    ) -> None:
        self.path = path
        self.found = found
        self.delegate = delegate
        self._files = files
        self._directories: dict[Hierarchy, CgroupDirectory] = {}
        self._kept: dict[str, Any] = {}  # last values of removed directories
        self._kept_gauges_until = math.inf  # monotonic seconds
        self._glances: dict[str | None, BatchReader] = {}  # by metric group; None: all
        self._settle_at = float("-inf")
        self._reading = NOTHING
        self._oom_kills: dict[str, int] = {}  # by subdirectory; v1 only
        self._born_at = files.kernel_log.position()
        self._cpu_user_seconds = 0.0
        self._has_v1 = False

    def add(self, hierarchy: Hierarchy) -> bool:
        """Add a hierarchy in which the path exists; False if it was known."""
        if hierarchy in self._directories:
            return False
        self._has_v1 |= hierarchy.version == 1
        path = f"{hierarchy.root}/{self.path}"
        shared = (self._files.descriptors, self._files.errors)
        if hierarchy.version == 2:
            directory = CgroupDirectory(
                path, self._files.v2, *shared, lambda: _limit(path, hierarchy.root)
            )
        else:
            files = [f for c in hierarchy.controllers for f in self._files.v1.get(c, ())]
            directory = CgroupDirectory(path, files, *shared)
        self._directories[hierarchy] = directory
        self._forget_glances()
        return True

    @property
    def gone(self) -> bool:
        """Whether no directory is left."""
        return not self._directories

    def read(self, now: float, group: str | None = None) -> CgroupReading:
        """Read what is left of it; returns the same reading again if nothing changed."""
        if now >= self._kept_gauges_until:
            self._kept = {name: x for name, x in self._kept.items() if name not in PASSING}
            self._kept_gauges_until = math.inf
            self._reading = self._finished()
        quick = now < self._settle_at
        changed = self._glance(group).read() if quick else None
        if changed is None:
            changed = self._read_each(now, group) or quick
        if changed:
            self._reading = self._finished()
        return self._reading

    def _glance(self, group: str | None) -> BatchReader:
        glance = self._glances.get(group)
        if glance is None:
            glance = self._glances[group] = BatchReader(
                [
                    file
                    for directory in self._directories.values()
                    for file in directory.often
                    if file.source.belongs(group)
                ]
            )
        return glance

    def _read_each(self, now: float, group: str | None) -> bool:
        """The slow path of `read`: look for limits and new files, forget removed directories."""
        self._forget_glances()
        changed, gone = False, []
        for hierarchy, directory in self._directories.items():
            try:
                changed = directory.read(now, group) or changed
            except CgroupGone:
                gone.append(hierarchy)
        for hierarchy in gone:
            self._drop(hierarchy)
            self._kept_gauges_until = now + _REMOVAL_SECONDS
        # The others are removed as well, but those without files to read do not report it.
        if gone:
            self.drop_removed(now)
        if all(directory.kept_open for directory in self._directories.values()):
            settle = (directory.settle_at for directory in self._directories.values())
            self._settle_at = min(settle, default=float("-inf"))
        return changed or bool(gone)  # its files may have been read before the removal

    def _forget_glances(self) -> None:
        """Forget the batch: a descriptor may be closed, and its number may be reused."""
        self._glances.clear()
        self._settle_at = float("-inf")

    def reading(self) -> CgroupReading:
        """The last reading."""
        return self._reading

    def _finished(self) -> CgroupReading:
        values = self._kept.copy()
        # In a hybrid hierarchy, v1's cpuacct and v2's cpu.stat both report the CPU time, with
        # different granularity: always use the same one.
        for directory in self._directories.values():
            values.update(directory.values)
        parts = CgroupParts._make(map(values.get, CgroupParts._fields))
        values["cpus"] = allocated_cpus(parts)
        if self._has_v1:
            several = cgroup1.combined(parts, self._cpu_user_seconds)
            told = zip(several._fields, several, strict=True)
            values.update(field for field in told if field[1] is not None)
        if self._oom_kills:
            values["oom_kills"] = sum(self._oom_kills.values())
        reading = CgroupReading._make(map(values.get, CgroupReading._fields))
        self._cpu_user_seconds = reading.cpu_user_seconds or 0.0
        return reading

    def drop_removed(self, now: float) -> None:
        """Forget directories that no longer exist or have been replaced."""
        for hierarchy, directory in list(self._directories.items()):
            if directory.removed():
                self._drop(hierarchy)
                self._kept_gauges_until = now + _REMOVAL_SECONDS

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
        """Hierarchy and absolute path."""
        return [(hierarchy, each.path) for hierarchy, each in self._directories.items()]

    def process_tree(self) -> str:
        """The directory below which all processes of the part are listed; "" if there is none."""
        best = min(self._directories, key=_completeness, default=None)
        return "" if best is None else self._directories[best].path

    def count_oom_kills(self) -> None:
        """Count the OOM kills of v1's directories below before they are removed.

        Kills in directories removed before that are in the kernel's log.
        """
        for hierarchy, directory in self._directories.items():
            if "memory" not in hierarchy.controllers:
                continue
            for each in descendants(directory.path, self._files.errors.count):
                try:
                    kills = cgroup1.oom_kills(each)
                except OSError as error:
                    if not is_gone(error):
                        self._files.errors.count(error)
                    continue
                except ValueError as error:
                    self._files.errors.count(error)
                    continue
                if kills is not None:
                    self._oom_kills[each] = kills
            self._hear_of_oom_kills(hierarchy)
        self._reading = self._finished()

    def close(self) -> None:
        """Close all descriptors."""
        for hierarchy in list(self._directories):
            self._drop(hierarchy)

    def _drop(self, hierarchy: Hierarchy) -> None:
        directory = self._directories.pop(hierarchy)
        self._kept.update(directory.values)
        self._forget_glances()
        directory.close()
        if "memory" in hierarchy.controllers and self._hear_of_oom_kills(hierarchy):
            self._reading = self._finished()

    def _hear_of_oom_kills(self, hierarchy: Hierarchy) -> bool:
        """Whether the kernel's log has more kills than the directories."""
        before = dict(self._oom_kills)
        told = self._files.kernel_log.kills(f"/{self.path}", self._born_at)
        for victim, kills in told.items():
            each = f"{hierarchy.root}{victim}"
            self._oom_kills[each] = max(kills, self._oom_kills.get(each, 0))
        return self._oom_kills != before


def _completeness(hierarchy: Hierarchy) -> int:
    if hierarchy.version == 2:
        return -1
    ranks = [_PIDS_FROM.index(each) for each in hierarchy.controllers if each in _PIDS_FROM]
    return min(ranks, default=len(_PIDS_FROM))


def _limit(path: str, root: str) -> dict[str, Any]:
    limit = cgroup2.memory_limit(path, root)
    return {} if limit is None else {cgroup2.LIMIT_FIELD: limit}
