"""The kernel's notifications of created, renamed and removed files and directories (inotify(7))."""

import ctypes
import os
import select
import struct
from typing import NamedTuple

MODIFY = 0x2
APPEARED = 0x80 | 0x100  # IN_MOVED_TO, IN_CREATE
DISAPPEARED = 0x40 | 0x200  # IN_MOVED_FROM, IN_DELETE
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x1000000
ISDIR = 0x40000000

_EVENT = struct.Struct("iIII")  # wd, mask, cookie, len; then the name, padded with zero bytes
_BUFFER_BYTES = 64 * 1024


class Event(NamedTuple):
    """One notification: the watch's number, what happened, and the name within a directory."""

    watch: int
    mask: int
    name: str


class Inotify:
    """An inotify instance. Raises OSError if the kernel refuses it (limits, seccomp)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._raise_errno(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._interrupt_reader, self._interrupt_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._poll.register(self._interrupt_reader, select.POLLIN)

    def add(self, path: str, mask: int) -> int:
        """Watch a file or directory; returns the number that its events carry."""
        return self._raise_errno(
            self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        )

    def remove(self, number: int) -> None:
        """Remove a watch; one that the kernel has removed is not an error."""
        self._libc.inotify_rm_watch(self._descriptor, number)

    def wait(self) -> list[Event]:
        """Wait for events; returns an empty list when `interrupt` is called."""
        ready = {descriptor for descriptor, _ in self._poll.poll()}
        if self._descriptor not in ready:
            return []
        data = os.read(self._descriptor, _BUFFER_BYTES)
        events, offset = [], 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            events.append(Event(watch, mask, name))
        return events

    def interrupt(self) -> None:
        """Make `wait` return, from another thread."""
        os.write(self._interrupt_writer, b"x")

    def close(self) -> None:
        for descriptor in (self._descriptor, self._interrupt_reader, self._interrupt_writer):
            os.close(descriptor)

    @staticmethod
    def _raise_errno(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
