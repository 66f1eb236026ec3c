"""A job's directory: one path, in every hierarchy that has it."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from collectors.jobs import cgroup1, cgroup2
from collectors.jobs.devices import DeviceNames
from collectors.jobs.directory import CgroupGone, Descriptors, Directory, Source, Trouble, read_path
from collectors.jobs.layouts import Found
from collectors.jobs.mounts import Hierarchy
from collectors.jobs.processes import pids_of
from collectors.jobs.reading import CgroupReading

# Where a job's processes are looked for, best first: Slurm's freezer tree holds all of them,
# cpuacct lacks slurmstepd, blkio and pids usually lack the tree (real Slurm 22.05 and OpenPBS 23.06).
_PIDS_FROM = ("freezer", "memory", "cpuacct", "cpuset", "devices", "pids")


class Tables(NamedTuple):
    """What to read of a directory, and what all directories share."""

    v1: Mapping[str, tuple[Source, ...]]
    v2: tuple[Source, ...]
    descriptors: Descriptors
    trouble: Trouble


def tables(
    groups: frozenset[str], devices: DeviceNames, descriptors: Descriptors, trouble: Trouble
) -> Tables:
    """The files of the metric groups wanted."""
    ticks = os.sysconf("SC_CLK_TCK")
    return Tables(
        cgroup1.sources(groups, devices, ticks),
        cgroup2.sources(groups, devices),
        descriptors,
        trouble,
    )


class Part:
    """One path of a job. Not thread-safe: the job has the lock.

    What a vanished directory said last stays: on v1 the controllers' directories go one by one.
    """

    def __init__(self, path: str, found: Found, tables: Tables) -> None:
        self.path = path
        self.found = found
        self._tables = tables
        self._directories: dict[Hierarchy, Directory] = {}
        self._values: dict[Hierarchy, dict[str, Any]] = {}
        self._oom_kills: dict[str, int] = {}

    def add(self, hierarchy: Hierarchy) -> None:
        """The path exists in this hierarchy."""
        if hierarchy in self._directories:
            return
        path = f"{hierarchy.root}/{self.path}"
        shared = (self._tables.descriptors, self._tables.trouble)
        if hierarchy.version == 2:
            directory = Directory(
                path, self._tables.v2, *shared, lambda: _limit(path, hierarchy.root)
            )
        else:
            files = [f for c in hierarchy.controllers for f in self._tables.v1.get(c, ())]
            directory = Directory(path, files, *shared)
        self._directories[hierarchy] = directory

    @property
    def gone(self) -> bool:
        """No directory is left."""
        return not self._directories

    def read(self, now: float, group: str | None = None) -> CgroupReading:
        """Read what is left of it."""
        for hierarchy, directory in list(self._directories.items()):
            try:
                known = self._values.setdefault(hierarchy, {})
                known.update(directory.read(now, group))
            except CgroupGone:
                directory.close()
                del self._directories[hierarchy]
        return self._reading()

    def populated(self) -> bool | None:
        """Whether it holds processes, as cgroup v2 says; None on v1, where one has to look."""
        for hierarchy, directory in self._directories.items():
            if hierarchy.version == 2:
                try:
                    return b"populated 1" in read_path(f"{directory.path}/cgroup.events")
                except OSError:
                    return None
        return None

    def directories(self) -> dict[Hierarchy, str]:
        """Absolute path per hierarchy."""
        return {hierarchy: each.path for hierarchy, each in self._directories.items()}

    def pids(self) -> dict[str, set[int]]:
        """Processes by directory, relative to the job's (`` for itself, `step_0/task_0`)."""
        top = self._process_tree()
        if top is None:
            return {}
        return {
            os.path.relpath(each, top) if each != top else "": found
            for each in cgroup1.descendants(top)
            if (found := pids_of((each,)))
        }

    def count_oom_kills(self) -> None:
        """Take over the OOM kills of v1's directories below, before they are removed."""
        for hierarchy, directory in self._directories.items():
            if "memory" not in hierarchy.controllers:
                continue
            for each in cgroup1.descendants(directory.path):
                try:
                    kills = cgroup1.oom_kills(each)
                except (OSError, ValueError):
                    continue
                if kills is not None:
                    self._oom_kills[each] = kills

    def close(self) -> None:
        """Close all descriptors."""
        for directory in self._directories.values():
            directory.close()
        self._directories.clear()

    def _reading(self) -> CgroupReading:
        values: dict[str, Any] = {}
        for each in self._values.values():
            values.update(each)
        values = cgroup1.finish(values)
        if self._oom_kills:
            values["oom_kills"] = sum(self._oom_kills.values())
        allocated = values.pop("cpuset_cpus", 0)
        effective = values.pop("effective_cpus", allocated)
        if allocated:  # an empty CPU set is inherited, and no allocation
            values["cpus"] = effective
        return CgroupReading(**values)

    def _process_tree(self) -> str | None:
        def rank(hierarchy: Hierarchy) -> int:
            ranks = [_PIDS_FROM.index(c) for c in hierarchy.controllers if c in _PIDS_FROM]
            return -1 if hierarchy.version == 2 else min(ranks, default=len(_PIDS_FROM))

        best = min(self._directories, key=rank, default=None)
        return None if best is None else self._directories[best].path


def _limit(path: str, root: str) -> dict[str, Any]:
    limit = cgroup2.memory_limit(path, root)
    return {} if limit is None else {"memory_limit": limit}
