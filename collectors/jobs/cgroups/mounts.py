"""The cgroup hierarchies of this machine and their mount points."""

import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

from collectors.host import Host, list_directory

# Linux Documentation/admin-guide/cgroup-v1/cgroups.rst. Not all of them have metrics, but jobs can
# be found in a scheduler's tree in any of them.
V1_CONTROLLERS = frozenset(
    {"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc"}
    | {"net_cls", "net_prio", "perf_event", "pids", "rdma"}
)


class Hierarchy(NamedTuple):
    """One mounted tree of cgroups."""

    version: Literal[1, 2]
    controllers: frozenset[str]  # of a v1 hierarchy; empty for v2, where they differ by directory
    root: str  # absolute path of the mount point


def hierarchies(host: Host) -> tuple[Hierarchy, ...]:
    """The hierarchies below `host.cgroupfs`, and others in the mount table.

    If v1 controllers are mounted beside v2 ("hybrid"), both are returned. A missing mount is not an
    error: the result is empty, and a later call may find it.
    """
    found: dict[str, Hierarchy] = {}
    for hierarchy in (*_hierarchies_below(host.cgroupfs), *_mounted_hierarchies(host)):
        found.setdefault(os.path.realpath(hierarchy.root), hierarchy)
    return tuple(found.values())


def _hierarchies_below(cgroupfs: str) -> Iterator[Hierarchy]:
    if os.path.exists(f"{cgroupfs}/cgroup.controllers"):
        yield Hierarchy(2, frozenset(), cgroupfs)
        return
    for name in list_directory(cgroupfs):
        root = f"{cgroupfs}/{name}"
        controllers = frozenset(os.path.basename(os.path.realpath(root)).split(","))
        if os.path.exists(f"{root}/cgroup.controllers"):
            yield Hierarchy(2, frozenset(), root)
        elif controllers <= V1_CONTROLLERS or os.path.exists(f"{root}/cgroup.procs"):
            yield Hierarchy(1, controllers, root)


def _mounted_hierarchies(host: Host) -> Iterator[Hierarchy]:
    """Mounts in unusual places, such as /cgroup/memory of old systems (proc(5), mountinfo).

    Only if the root of the file system was not moved: in a container with the host's tree in
    another place, the table has paths that are not valid here.
    """
    if host.cgroupfs != Host.cgroupfs:
        return
    try:
        with open(f"{host.procfs}/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        mount_part, _, filesystem_part = line.partition(" - ")
        mount_fields, filesystem_fields = mount_part.split(" "), filesystem_part.split(" ")
        if len(mount_fields) < 5 or len(filesystem_fields) < 3 or mount_fields[3] != "/":
            continue  # a bind mount of a subtree would list jobs twice
        if filesystem_fields[0] == "cgroup2":
            yield Hierarchy(2, frozenset(), mount_fields[4])
        elif filesystem_fields[0] == "cgroup":
            yield Hierarchy(
                1, frozenset(filesystem_fields[2].split(",")) & V1_CONTROLLERS, mount_fields[4]
            )
