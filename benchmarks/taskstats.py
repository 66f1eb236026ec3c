"""What the kernel writes of every task that ends: CPU time, and what it read and wrote.

    with taskstats.recording() as records:
        ...
    sum(each.cpu_seconds for each in records if each.uid == 20001)

Layouts: linux/taskstats.h and linux/genetlink.h, and the kernel's Documentation/accounting. Needs
root. A task is a thread; its record has its own time and its process' input and output.
"""

import contextlib
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

_GENERIC, _REQUEST = 16, 1
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_GET, _REGISTER_CPUMASK = 1, 3
_OF_TASK, _ID, _STATS = 4, 1, 3
_RECEIVE_BYTES = 32 << 20


class Record(NamedTuple):
    """One task's end."""

    task: int
    uid: int
    command: str
    ended: float  # epoch seconds at which the record arrived
    elapsed_seconds: float
    cpu_seconds: float  # as accounted by the scheduler of the kernel, in nanoseconds
    read_bytes: int  # from block devices
    written_bytes: int
    read_characters: int  # through system calls
    written_characters: int


@contextlib.contextmanager
def recording() -> Iterator[list[Record]]:
    """Every task that ends meanwhile; whole when the block is left."""
    found: list[Record] = []
    stopped = threading.Event()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _GENERIC) as link:
        link.setsockopt(socket.SOL_SOCKET, 33, _RECEIVE_BYTES)  # SO_RCVBUFFORCE
        link.bind((0, 0))
        _ask(link, _CONTROL, _GET_FAMILY, _FAMILY_NAME, b"TASKSTATS\0")
        family = next(
            struct.unpack("=H", value)[0]
            for kind, value in _attributes(link.recv(1 << 16)[20:])
            if kind == _FAMILY_ID
        )
        cpus = f"0-{(os.cpu_count() or 1) - 1}\0".encode()
        _ask(link, family, _GET, _REGISTER_CPUMASK, cpus)
        link.settimeout(0.5)
        thread = threading.Thread(target=_receive, args=(link, found, stopped))
        thread.start()
        try:
            yield found
        finally:
            stopped.set()
            thread.join()


def _ask(link: socket.socket, family: int, command: int, kind: int, value: bytes) -> None:
    attribute = struct.pack("=HH", 4 + len(value), kind) + value
    body = struct.pack("=BBH", command, 1, 0) + attribute + b"\0" * (-len(attribute) % 4)
    link.send(struct.pack("=IHHII", 16 + len(body), family, _REQUEST, 0, 0) + body)


def _receive(link: socket.socket, found: list[Record], stopped: threading.Event) -> None:
    left_until = math.inf
    while time.monotonic() < left_until:
        if stopped.is_set():  # messages on their way still arrive
            left_until = min(left_until, time.monotonic() + 1)
        try:
            # Raises ENOBUFS, and so ends the benchmark, if messages were lost.
            message = link.recv(1 << 16)
        except TimeoutError:
            continue
        for kind, value in _attributes(message[20:]):
            if kind == _OF_TASK:
                inner = dict(_attributes(value))
                found.append(_record(struct.unpack("=I", inner[_ID])[0], inner[_STATS]))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[length + -length % 4 :]


def _record(task: int, stats: bytes) -> Record:
    (nanoseconds,) = struct.unpack_from("=Q", stats, 72)
    command = stats[80:112].partition(b"\0")[0].decode(errors="replace")
    (uid,) = struct.unpack_from("=I", stats, 120)
    (microseconds,) = struct.unpack_from("=Q", stats, 144)
    read_characters, written_characters = struct.unpack_from("=QQ", stats, 216)
    read, written = struct.unpack_from("=QQ", stats, 248)
    return Record(
        task, uid, command, time.time(), microseconds / 1e6, nanoseconds / 1e9, read, written,
        read_characters, written_characters,
    )  # fmt: skip
