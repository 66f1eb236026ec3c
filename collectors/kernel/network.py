"""Bytes and packets of each job's sockets, by programs that see each packet once.

On cgroup v2, a pair of programs at the parent of the jobs counts for the ancestor of the socket's
cgroup. Where jobs are in v1 hierarchies, a program at the creation of each socket notes the job of
its creator, and accept(2) copies that to the new socket. Loopback is counted apart. What has no
socket of a process is not seen: RDMA, and the file systems of the kernel.
"""

import contextlib
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from batchjob.runtime.values import parse_cpu_list
from collectors.host import read_text
from collectors.kernel import assembler as asm
from collectors.kernel import bpf
from collectors.kernel.parts import MAX_JOBS, Capacity, JobTree, find_entry, find_job
from collectors.kernel.types import KernelTypes

MAX_PARENTS = 64  # of jobs, at which programs are attached at a time
_ANCESTOR, _FULL_SOCKET, _STORAGE, _TASK_NOW = 83, 95, 107, 158  # helpers of the kernel
_LENGTH, _INTERFACE, _SEGMENTS, _SOCKET = 0, 40, 164, 168  # in struct __sk_buff
_CREATE = 1  # BPF_SK_STORAGE_GET_F_CREATE
_LOOPBACK_INTERFACE, _LOOPBACK = 1, 2  # index of lo in every namespace; bit in the key
_KEY, _VALUE = struct.Struct("=QQ"), struct.Struct("=QQ")  # job and way; bytes and packets
_KEY_ON_STACK, _VALUE_ON_STACK = -16, -32
_CONTEXT, _JOB, _TASK = 6, 7, 9  # registers


class Network:
    """The programs for one tree of jobs. Raises OSError, ValueError if they cannot be loaded."""

    def __init__(self, types: KernelTypes, tree: JobTree) -> None:
        possible = parse_cpu_list(read_text("/sys/devices/system/cpu/possible"))
        self._cpus = max(possible, default=0) + 1  # values of an entry of the table
        self._capacity = Capacity(MAX_JOBS)
        # By inode, the latest one asked for last.
        self._parents: dict[int, contextlib.ExitStack] = {}
        self.programs: list[tuple[int, int]] = []  # descriptor, and where it is attached
        with contextlib.ExitStack() as opened:
            self._opened = opened
            self._table = bpf.create_hash(bpf.PER_CPU_HASH, _KEY.size, _VALUE.size, MAX_JOBS)
            opened.callback(os.close, self._table)
            find = _job_of_ancestor(tree.level)
            if tree.controller:
                storage = bpf.create_socket_storage()
                opened.callback(os.close, storage)
                find = _job_of_storage(storage)
                code = _note_job(types, tree, storage)
                self._load(bpf.CGROUP_SOCK, code, bpf.SOCKET_CREATED)
            for way in (bpf.INGRESS, bpf.EGRESS):
                self._load(bpf.CGROUP_SKB, _count(find, self._table, way), way)
            self._opened = opened.pop_all()

    def _load(self, kind: int, code: list[asm.Part], place: int) -> None:
        program = bpf.load_program(kind, asm.assemble(code), place)
        self._opened.callback(os.close, program)
        self.programs.append((program, place))

    def attach(self, parent: int, begun: Callable[[], None] = lambda: None) -> None:
        """Count below a cgroup v2, by its descriptor, instead of the one asked for least lately.

        Calls `begun` when the programs run, and takes them back if that fails. Does nothing if they
        are there. Raises OSError.
        """
        inode = os.fstat(parent).st_ino
        links = self._parents.pop(inode, None)
        if links is None:
            while len(self._parents) >= MAX_PARENTS:
                self._parents.pop(next(iter(self._parents))).close()
            with contextlib.ExitStack() as attached:
                for program, place in self.programs:
                    attached.callback(os.close, bpf.attach(program, parent, place))
                begun()
                links = attached.pop_all()
        self._parents[inode] = links

    def close(self) -> None:
        for links in (*self._parents.values(), self._opened):
            links.close()

    def read(self) -> Mapping[int, list[list[int]]]:
        """Of each job, over interfaces and over loopback: bytes and packets in, and out.

        The key is the id of the job's cgroup. Raises OSError, also if there were too many jobs.
        """
        found: defaultdict[int, list[list[int]]] = defaultdict(lambda: [[0] * 4, [0] * 4])
        entries = list(bpf.entries(self._table, _KEY.size, _VALUE.size * self._cpus))
        self._capacity.check(len(entries))
        for key, values in entries:
            job, way = _KEY.unpack(key)
            first = 2 * (way & bpf.EGRESS)
            sums = map(sum, zip(*_VALUE.iter_unpack(values), strict=True))
            found[job][way // _LOOPBACK][first : first + 2] = sums
        return found

    def forget(self, jobs: Collection[int]) -> None:
        for job in jobs:
            for way in range(4):
                bpf.delete(self._table, _KEY.pack(job, way))


# fmt: off
def _note_job(types: KernelTypes, tree: JobTree, storage: int) -> list[asm.Part]:
    """At the creation of a socket: keep the job of the process with it."""
    return [
        asm.move(_CONTEXT, 1), asm.call(_TASK_NOW), asm.move(_TASK, asm.RESULT),
        *find_job(types, tree, _TASK, _JOB),
        asm.store(asm.STACK, _KEY_ON_STACK, _JOB),
        *asm.map_descriptor(1, storage), asm.move(2, _CONTEXT), *asm.address(3, _KEY_ON_STACK),
        asm.constant(4, _CREATE), asm.call(_STORAGE),
        "out", *asm.leave(1),
    ]


def _job_of_storage(storage: int) -> list[asm.Part]:
    return [
        asm.load(1, _CONTEXT, _SOCKET), asm.jump("out", 1, "==", 0),
        asm.call(_FULL_SOCKET), asm.jump("out", asm.RESULT, "==", 0),
        *asm.map_descriptor(1, storage), asm.move(2, asm.RESULT), asm.constant(3, 0),
        asm.constant(4, 0), asm.call(_STORAGE), asm.jump("out", asm.RESULT, "==", 0),
        asm.load(_JOB, asm.RESULT, 0),
    ]


def _job_of_ancestor(level: int) -> list[asm.Part]:
    return [
        asm.move(1, _CONTEXT), asm.constant(2, level), asm.call(_ANCESTOR),
        asm.jump("out", asm.RESULT, "==", 0), asm.move(_JOB, asm.RESULT),
    ]


def _count(find: list[asm.Part], table: int, way: int) -> list[asm.Part]:
    """For each packet: add its length to the job of its socket. The packet always passes."""
    return [
        asm.move(_CONTEXT, 1), *find, asm.store(asm.STACK, _KEY_ON_STACK, _JOB),
        asm.constant(2, way), asm.load(1, _CONTEXT, _INTERFACE, 4),
        asm.jump("wire", 1, "!=", _LOOPBACK_INTERFACE), asm.add(2, _LOOPBACK),
        "wire", asm.store(asm.STACK, _KEY_ON_STACK + 8, 2),
        *find_entry(table, _KEY_ON_STACK, _VALUE_ON_STACK, 2),
        asm.jump("out", asm.RESULT, "==", 0),
        asm.load(1, _CONTEXT, _LENGTH, 4), asm.atomic_add(asm.RESULT, 0, 1),
        asm.load(1, _CONTEXT, _SEGMENTS, 4), asm.jump("segments", 1, "!=", 0), asm.constant(1, 1),
        "segments", asm.atomic_add(asm.RESULT, 8, 1),
        "out", *asm.leave(1),
    ]
