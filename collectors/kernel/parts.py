"""Parts of programs: the job of a task, which is its ancestor cgroup at one level, and an entry."""

import errno
from typing import NamedTuple

from collectors.host import read_text
from collectors.kernel import assembler as asm
from collectors.kernel.types import KernelTypes

MAX_JOBS = 16384  # entries of a table; on the network, a job has up to four
_MAX_DEPTH = 24  # of cgroups within a job; the processes in deeper ones are in no job's numbers
_LOOKUP, _UPDATE = 1, 2  # bpf_map_lookup_elem, bpf_map_update_elem
_NEW_ONLY = 1  # BPF_NOEXIST


class Capacity:
    """Whether a table was ever full: since then some jobs may lack what was counted meanwhile."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._was_full = False

    def check(self, used: int) -> None:
        """Raise OSError from the first time on that a table is full."""
        self._was_full |= used >= self._entries
        if self._was_full:
            raise OSError(errno.ENOSPC, f"there were {self._entries} counters of jobs at a time")


class JobTree(NamedTuple):
    """The jobs of a node: the cgroups at one level of one hierarchy."""

    controller: str  # of a v1 hierarchy; "" for v2
    level: int  # of a job's cgroup; the root has level 0


def _controller_index(controller: str) -> int:
    """The number of a v1 controller: its place among the enabled ones. Raises ValueError."""
    rows = [line.split() for line in read_text("/proc/cgroups").splitlines()]
    names = [row[0] for row in rows if row[-1] == "1"]
    if controller not in names:
        raise ValueError(f"jobs are in the hierarchy {controller}, which has no controller")
    return names.index(controller)


def find_job(types: KernelTypes, tree: JobTree, task: int, cgroup: int) -> list[asm.Part]:
    """Set a register to the id of the job's cgroup; jumps to "out" if the task is in none.

    `task` is a register with its task_struct, which is not changed; register 1 is. The id is the
    inode number of the cgroup's directory.
    """
    state = types.offset("cgroup_subsys_state", "cgroup")
    parts: list[asm.Part] = [asm.load(cgroup, task, types.offset("task_struct", "cgroups"))]
    if tree.controller:
        place = types.offset("css_set", "subsys") + 8 * _controller_index(tree.controller)
        parts += [asm.load(cgroup, cgroup, place), asm.load(cgroup, cgroup, state)]
    else:
        parts += [asm.load(cgroup, cgroup, types.offset("css_set", "dfl_cgrp"))]
    level = types.offset("cgroup", "level")
    up = types.offset("cgroup", "self") + types.offset("cgroup_subsys_state", "parent")
    parts += [asm.load(1, cgroup, level, 4), asm.jump("out", 1, "<", tree.level)]
    for _ in range(_MAX_DEPTH):
        parts += [asm.jump("job", 1, "==", tree.level), asm.load(cgroup, cgroup, up)]
        parts += [asm.load(cgroup, cgroup, state), asm.load(1, cgroup, level, 4)]
    parts += [asm.jump("out", 1, "!=", tree.level), "job"]
    parts += [asm.load(cgroup, cgroup, types.offset("cgroup", "kn"))]
    return [*parts, asm.load(cgroup, cgroup, types.offset("kernfs_node", "id"))]


def find_entry(table: int, key: int, value: int, words: int) -> list[asm.Part]:
    """Set the result to an entry, a new one with zeros if there was none, null if the map is full.

    `key` and `value` are offsets on the stack; the value there is overwritten.
    """
    look_up = [*asm.address(2, key), *asm.map_descriptor(1, table), asm.call(_LOOKUP)]
    parts: list[asm.Part] = [*look_up, asm.jump("found", asm.RESULT, "!=", 0)]
    parts += [asm.store_zero(asm.STACK, value + 8 * word) for word in range(words)]
    parts += [*asm.address(2, key), *asm.address(3, value), asm.constant(4, _NEW_ONLY)]
    return [*parts, *asm.map_descriptor(1, table), asm.call(_UPDATE), *look_up, "found"]
