"""The IO of all processes of each job, exact: of the living in one pass, of the ended at their end.

A program at the tracepoint sched_process_exit adds the counters of each thread that ends to its
job, and an iterator adds up those of the living. Nothing runs when a process reads or writes.
"""

import contextlib
import os
import struct
from collections.abc import Collection, Mapping

from collectors.kernel import assembler as asm
from collectors.kernel import bpf
from collectors.kernel.parts import MAX_JOBS, Capacity, JobTree, find_entry, find_job
from collectors.kernel.types import KernelTypes

_COUNTERS = ("read_bytes", "write_bytes", "rchar", "wchar")  # of struct task_io_accounting
_VALUE = struct.Struct(f"={len(_COUNTERS)}Q")
_KEY_ON_STACK, _VALUE_ON_STACK = -8, -8 - _VALUE.size
_TASK, _JOB = 7, 8  # registers


class ProcessIo:
    """The programs for one tree of jobs. Raises OSError, ValueError if they cannot be loaded."""

    def __init__(self, types: KernelTypes, tree: JobTree) -> None:
        with contextlib.ExitStack() as opened:
            self._opened = opened
            self._capacity = Capacity(MAX_JOBS)
            self._ended, self._living = self._new_map(), self._new_map()
            # What has ended before is in the processes that waited for it, and read first: a
            # thread that ends meanwhile is missed, and not counted twice.
            earlier = self._load_iterator(types, tree, "signal_struct")
            self._before = self._sum(self._kept(bpf.attach(earlier, 0, bpf.ITERATOR)))
            living = self._load_iterator(types, tree, "task_struct")
            self._iterator = self._kept(bpf.attach(living, 0, bpf.ITERATOR))
            code = [asm.load(_TASK, 1, 0), *_add(types, tree, self._ended, "task_struct")]
            target = types.tracepoint("sched_process_exit")
            self.program = self._load(code, bpf.RAW_TRACEPOINT, target)
            self._kept(bpf.attach_tracepoint(self.program))
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def read(self) -> Mapping[int, tuple[int, ...]]:
        """Bytes read from and written to storage, and of all read and write calls, by job.

        The key is the id of the job's cgroup. The ended are read first: what ends meanwhile is
        missing until the next reading. Raises OSError, also if there were too many jobs.
        """
        sums: dict[int, tuple[int, ...]] = {}
        for found in (self._before, _entries(self._ended), self._sum(self._iterator)):
            self._capacity.check(len(found))
            for job, counters in found.items():
                known = sums.get(job, (0,) * len(_COUNTERS))
                sums[job] = tuple(a + b for a, b in zip(known, counters, strict=True))
        return sums

    def forget(self, jobs: Collection[int]) -> None:
        for job in jobs:
            self._before.pop(job, None)
            bpf.delete(self._ended, struct.pack("=Q", job))

    def _kept(self, descriptor: int) -> int:
        self._opened.callback(os.close, descriptor)
        return descriptor

    def _new_map(self) -> int:
        return self._kept(bpf.create_hash(bpf.HASH, 8, _VALUE.size, MAX_JOBS))

    def _load_iterator(self, types: KernelTypes, tree: JobTree, counters: str) -> int:
        """The second member of struct bpf_iter__task is the task, null after the last one."""
        code: list[asm.Part] = [asm.load(_TASK, 1, 8), asm.jump("out", _TASK, "==", 0)]
        code += _add(types, tree, self._living, counters)
        return self._load(code, bpf.ITERATOR, types.function("bpf_iter_task"))

    def _load(self, code: list[asm.Part], place: int, target: int) -> int:
        return self._kept(bpf.load_program(bpf.TRACING, asm.assemble(code), place, target))

    def _sum(self, iterator: int) -> dict[int, tuple[int, ...]]:
        for job in _entries(self._living):
            bpf.delete(self._living, struct.pack("=Q", job))
        bpf.run_iterator(iterator)
        return _entries(self._living)


def _entries(table: int) -> dict[int, tuple[int, ...]]:
    found = bpf.entries(table, 8, _VALUE.size)
    return {struct.unpack("=Q", key)[0]: _VALUE.unpack(value) for key, value in found}


def _add(types: KernelTypes, tree: JobTree, table: int, counters: str) -> list[asm.Part]:
    """Add the counters of a task, or those that its group keeps of ended threads and children."""
    parts: list[asm.Part] = [*find_job(types, tree, _TASK, _JOB)]
    if counters == "signal_struct":
        parts += [asm.load(1, _TASK, types.offset("task_struct", "pid"), 4)]
        parts += [asm.load(2, _TASK, types.offset("task_struct", "tgid"), 4)]
        parts += [asm.jump_if_different("out", 1, 2)]  # the leader stands for its group
        parts += [asm.load(_TASK, _TASK, types.offset("task_struct", "signal"))]
    parts += [asm.store(asm.STACK, _KEY_ON_STACK, _JOB)]
    parts += find_entry(table, _KEY_ON_STACK, _VALUE_ON_STACK, len(_COUNTERS))
    parts += [asm.jump("out", asm.RESULT, "==", 0)]
    base = types.offset(counters, "ioac")
    for word, name in enumerate(_COUNTERS):
        parts += [asm.load(1, _TASK, base + types.offset("task_io_accounting", name))]
        parts += [asm.atomic_add(asm.RESULT, 8 * word, 1)]
    return [*parts, "out", *asm.leave(0)]
