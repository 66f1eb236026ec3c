"""A run's own cgroup: created, joined, read, emptied, removed.

It is where the exporter looks for it (batchjob/local_runs/node.py): `batchjob.slice/run-<uuid>` at
the mount of each v1 hierarchy, on v2 also below a cgroup that was delegated to the user.
"""

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from batchjob.local_runs.node import LAYOUT, RUN_PREFIX, RUNS_DIRECTORY
from batchjob.quantities.reading import CgroupReading
from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from batchjob_cli.run import limits as limiting
from batchjob_cli.run.limits import CgroupError, RunLimits
from batchjob_cli.run.process_tree import signal_all
from collectors.host import Host, read_path
from collectors.jobs.cgroups import reader, v1, v2
from collectors.jobs.cgroups.formats import DeviceNames
from collectors.jobs.cgroups.job_cgroup import CgroupFiles, JobCgroup
from collectors.jobs.cgroups.kernel_log import KernelLog
from collectors.jobs.cgroups.mounts import Hierarchy, hierarchies

_V1 = frozenset({"cpu", "cpuacct", "memory", "blkio", "pids"})
_V2 = ("cpu", "io", "memory", "pids")
_GROUPS = frozenset({"cpu", "memory", "io", "processes", "pressure"})
_MAX_ATTEMPTS = 20  # another run's end may remove the slice between our two mkdir
_REMOVAL_SECONDS = 2.0  # a killed process may take a moment to disappear


_RunDirectory = tuple[Hierarchy, str]
"""A hierarchy, and the path relative to its mount."""


class Cgroup:
    """The directories of one run, in one hierarchy or several."""

    def __init__(
        self, jobid: str, directories: tuple[_RunDirectory, ...], version: int, host: Host
    ) -> None:
        self.version = version
        self.directories = tuple(f"{hierarchy.root}/{path}" for hierarchy, path in directories)
        self._kernel_log = KernelLog(f"{host.dev}/kmsg")
        errors = reader.ReadErrors()
        devices = DeviceNames(host.sysfs, errors)
        sources = v1.sources(_GROUPS, devices), v2.sources(_GROUPS, devices)
        files = CgroupFiles(*sources, threading.Semaphore(32), self._kernel_log, errors)
        self._job_cgroup = JobCgroup(
            directories[0][1], LayoutMatch(LAYOUT, LAYOUT.manager, jobid), None, files
        )
        self._host = host
        for hierarchy, _ in directories:
            self._job_cgroup.add(hierarchy)

    def join(self) -> None:
        """Move the calling process into it; raises OSError."""
        for directory in self.directories:
            _write(f"{directory}/cgroup.procs", "0")

    def limit(self, limits: RunLimits, directory: str) -> tuple[RunLimits, list[str]]:
        """Apply each limit; returns those in force, and why the others are not."""
        applied, left_out = RunLimits(), []
        for name, value in limits._asdict().items():
            if value:
                try:
                    self._apply(RunLimits(**{name: value}), directory)
                    applied = applied._replace(**{name: value})
                except (CgroupError, OSError) as error:
                    left_out.append(str(error))
        return applied, left_out

    def _apply(self, limits: RunLimits, directory: str) -> None:
        """Apply limits; raises CgroupError for the first that cannot be applied."""
        for each in limiting.cgroup_settings(limits, self.version, directory):
            paths = [f"{path}/{each.file}" for path in self.directories]
            existing_path = next((path for path in paths if os.path.exists(path)), None)
            if existing_path is None and each.is_optional:
                continue
            if existing_path is None:
                raise CgroupError(f"{each.flag}: this cgroup has no controller {each.controller}")
            try:
                _write(existing_path, each.value)
            except OSError as error:
                raise CgroupError(f"{each.flag}: {existing_path}: {error.strerror}") from error

    def bind_cpus(self, cpus: str) -> bool:
        """Restrict its processes to these CPUs; False if no cpuset can do that.

        On v1, cpuset is a hierarchy of its own, which would need its memory nodes set first.
        """
        directory = self.directories[0]
        if self.version == 1:
            return False
        try:
            for above in (Path(directory).parent.parent, Path(directory).parent):
                _write(f"{above}/cgroup.subtree_control", "+cpuset")
            _write(f"{directory}/cpuset.cpus", cpus)
        except OSError:
            return False
        return True

    def read(self) -> CgroupReading:
        """The usage of its processes, including ended ones."""
        reading = self._job_cgroup.read(self._host.monotonic())
        if self.version == 1:
            self._job_cgroup.count_oom_kills()
            reading = self._job_cgroup.reading
        return reading

    def processes(self) -> set[int]:
        """Its processes; 0, a process of another pid namespace, is left out."""
        return reader.read_pids(reader.descendants(self.directories[0])) - {0}

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            # Since Linux 5.14; it does not miss processes that fork meanwhile.
            with contextlib.suppress(OSError):
                _write(f"{self.directories[0]}/cgroup.kill", "1")
                return
        signal_all(self.processes, number)

    def owners(self) -> set[int]:
        """The owners of its directories."""
        return {os.lstat(path).st_uid for path in self.directories}

    def remove(self) -> list[str]:
        """Remove it, with what the job created below; returns directories that remain."""
        self._job_cgroup.close()
        self._kernel_log.close()
        until = time.monotonic() + _REMOVAL_SECONDS
        while remaining := [path for path in self.directories if not _remove_tree(path)]:
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        for path in self.directories:
            with contextlib.suppress(OSError):  # other runs still use it
                Path(path).parent.rmdir()
        return remaining


def create(jobid: str, limits: RunLimits, host: Host | None = None) -> Cgroup:
    """Create the cgroup of a run, if possible with the controllers that its limits need.

    Raises CgroupError.
    """
    host = host or Host()
    mounted = hierarchies(host)
    v1 = [each for each in mounted if each.version == 1 and each.controllers & _V1]
    v1 = [each for each in v1 if "cpuset" not in each.controllers]  # cpuset would need CPUs first
    if v1:
        return _create_v1(jobid, v1, host)
    v2 = [each for each in mounted if each.version == 2]
    if v2:
        return _create_v2(jobid, v2[0], limits, host)
    raise CgroupError("no cgroup file system is mounted")


def creation_error(host: Host | None = None) -> str:
    """Why no cgroup can be created for a run here; "" if one can."""
    try:
        cgroup = create(f"{uuid.uuid4()}", RunLimits(), host)
    except (CgroupError, OSError) as error:
        return str(error)
    cgroup.remove()
    return ""


def find_existing(host: Host | None = None) -> dict[str, Cgroup]:
    """Find the cgroups of runs, by job id, in all places where they may be created."""
    host = host or Host()
    found: dict[str, list[_RunDirectory]] = {}
    for hierarchy in hierarchies(host):
        v1 = hierarchy.version == 1
        for parent in [hierarchy.root] if v1 else _parent_candidates(hierarchy.root, host):
            top = f"{parent}/{RUNS_DIRECTORY}"
            for name in reader.child_names(top):
                if name.startswith(RUN_PREFIX):
                    path = os.path.relpath(f"{top}/{name}", hierarchy.root)
                    found.setdefault(name.removeprefix(RUN_PREFIX), []).append((hierarchy, path))
    return {
        jobid: Cgroup(jobid, _memory_first(directories), directories[0][0].version, host)
        for jobid, directories in found.items()
    }


def _memory_first(directories: Iterable[_RunDirectory]) -> tuple[_RunDirectory, ...]:
    """The hierarchies in a fixed order, so that the same one is always read for the processes."""
    return tuple(sorted(directories, key=lambda each: "memory" not in each[0].controllers))


def _create_v1(jobid: str, mounted: Iterable[Hierarchy], host: Host) -> Cgroup:
    directories: list[_RunDirectory] = []
    refusals: list[str] = []
    path = f"{RUNS_DIRECTORY}/{RUN_PREFIX}{jobid}"
    for hierarchy in mounted:
        try:
            _create_directory(hierarchy.root, jobid)
            directories.append((hierarchy, path))
        except OSError as error:
            refusals.append(f"{hierarchy.root}: {error.strerror}")
    if not directories:
        raise CgroupError(refusals[0])
    return Cgroup(jobid, _memory_first(directories), 1, host)


def _create_v2(jobid: str, hierarchy: Hierarchy, limits: RunLimits, host: Host) -> Cgroup:
    """Below the first cgroup that has all wanted controllers, or else the one that has most."""
    wanted = {"cpu", "memory", *limiting.required_controllers(limits, 2)}

    def is_unseen(parent: str) -> bool:
        """Whether the exporter does not look there, as in most of user.slice."""
        from collectors.jobs.discovery.walk import match  # which loads much of the exporter

        path = f"{parent}/{RUNS_DIRECTORY}/{RUN_PREFIX}{jobid}"
        return match(os.path.relpath(path, hierarchy.root), registry.layouts(), 2) is None

    best: tuple[int, str] | None = None
    refusal = f"{hierarchy.root}: this process may not use any cgroup there"
    for parent in sorted(_parent_candidates(hierarchy.root, host), key=is_unseen):
        try:
            available = _create_directory(parent, jobid)
        except OSError as error:
            refusal = f"{parent}: {error.strerror}"
            continue
        if best is None or len(available) > best[0]:
            best = (len(available), parent)
        if wanted <= available:
            break
        _remove_tree(f"{parent}/{RUNS_DIRECTORY}/{RUN_PREFIX}{jobid}")
        with contextlib.suppress(OSError):
            Path(parent, RUNS_DIRECTORY).rmdir()
    else:
        if best is None:
            raise CgroupError(refusal)
        _create_directory(best[1], jobid)
        parent = best[1]
    path = f"{parent}/{RUNS_DIRECTORY}/{RUN_PREFIX}{jobid}"
    return Cgroup(jobid, ((hierarchy, os.path.relpath(path, hierarchy.root)),), 2, host)


def _parent_candidates(root: str, host: Host) -> Iterator[str]:
    """Where a v2 cgroup may be created, best first.

    root's are at the top level, like other slices. Other users stay within what was delegated to
    them: moving a process requires the right to write `cgroup.procs` of the common ancestor
    (cgroup-v2.rst, "Delegation Containment"), which here is the parent itself.
    """
    if os.geteuid() == 0:
        yield root
    lines = read_path(f"{host.procfs}/self/cgroup").decode().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    path = os.path.normpath(f"{root}/{own}")
    while path.startswith(root + "/"):
        if os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK):
            yield path
        path = os.path.dirname(path)


def _create_directory(parent: str, jobid: str) -> set[str]:
    """Create `batchjob.slice/run-<uuid>`; returns its controllers. Raises OSError."""
    top = f"{parent}/{RUNS_DIRECTORY}"
    path = f"{top}/{RUN_PREFIX}{jobid}"
    for attempt in range(_MAX_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            Path(top).mkdir()
        for directory in (parent, top):
            _enable_controllers(directory)
        try:
            Path(path).mkdir()
            break
        except FileNotFoundError:
            if attempt == _MAX_ATTEMPTS - 1:
                raise
    try:
        return set(read_path(f"{path}/cgroup.controllers").decode().split())
    except OSError:
        return set()  # v1


def _enable_controllers(directory: str) -> None:
    """Enable the available controllers: a cgroup with processes of its own refuses (EBUSY)."""
    control = f"{directory}/cgroup.subtree_control"
    if not os.path.exists(control):
        return
    on = set(read_path(control).decode().split())
    for controller in _V2:
        if controller not in on:
            with contextlib.suppress(OSError):
                _write(control, f"+{controller}")


def _remove_tree(path: str) -> bool:
    """Remove a directory with all below it; returns whether it is gone."""
    for each in reversed(reader.descendants(path)):
        with contextlib.suppress(OSError):
            Path(each).rmdir()
    return not os.path.exists(path)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
