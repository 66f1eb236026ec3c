"""Files of cgroup directories: the fields that they fill, and how they are read repeatedly."""

import errno
import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress, count, repeat
from operator import ne
from typing import Any, NamedTuple

from collectors.jobs.cgroups.formats import Parse

_PAGE = 4096
_RECORD = 24  # bytes; longer than a line of cgroup.procs
# Most files are smaller. Together with the header of a `bytes` object this makes 512 bytes, up to
# which Python uses its own allocator instead of malloc().
_SMALL = 512 - sys.getsizeof(b"")
_FROM_START = repeat(0)
# Bytes; cgroup.procs, the longest file, can list 500,000 processes in this size.
_LARGEST = 4 << 20


BRIEF = "brief"
"""The group of files, of whatever group of metrics, that are read between scrapes as well."""


class CgroupFile(NamedTuple):
    """A file of a directory and the fields of a reading that it fills.

    `parse` returns field → value and raises ValueError for text that is not in the file's format.
    """

    file: str
    group: str
    parse: Parse
    rare: bool = False
    may_be_empty: bool = False  # other files end with a line feed even if they have no value
    brief: bool = False  # also read between scrapes, so that short jobs have it

    def belongs(self, group: str | None) -> bool:
        """Whether it is read with a group; None means all groups."""
        return group is None or group == self.group or (group == BRIEF and self.brief)


class OpenCgroupFile:
    """An existing file: how it is read, and its last values.

    A hash of its text is kept, not the text: the texts of a thousand jobs are megabytes.
    """

    __slots__ = ("_fields", "descriptor", "digest", "room", "source", "values")

    def __init__(self, source: CgroupFile, descriptor: int, values: dict[str, Any]) -> None:
        self.source = source
        self.descriptor = descriptor  # -1: open the file for each read
        self.room = _SMALL  # bytes to read; larger than the file was so far
        self.digest: int | None = None  # hash of the content; None if the content was invalid
        self.values = values  # shared by all files of the directory
        self._fields: tuple[str, ...] = ()  # the fields set by this file

    def take(self, data: bytes) -> bool:
        """Parse the file's present text; False if it is malformed."""
        try:
            if data[-1:] != b"\n" and (data or not self.source.may_be_empty):
                raise ValueError("half a line")
            said, self.digest = self.source.parse(data), hash(data)
        except (ValueError, LookupError):
            said, self.digest = {}, None
        self.show(said)
        return self.digest is not None

    def show(self, said: Mapping[str, Any]) -> None:
        """Replace the file's previous values by these."""
        fields = tuple(said)
        if fields != self._fields:
            for field in self._fields:
                self.values.pop(field, None)
            self._fields = _field_names(fields)
        self.values.update(said)

    def overflows(self, data: bytes) -> bool:
        """Whether a read of this size may have left a remainder."""
        return len(data) > self.room - _RECORD


@lru_cache(1000)
def _field_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Share equal tuples of names among all jobs."""
    return fields


class BatchReader:
    """Reads the files of some directories in one go, as long as none of them has a problem.

    A scrape reads thousands of files with cold caches: whatever Python touches between two reads
    costs as much as a read.
    """

    __slots__ = ("_descriptors", "_digests", "_files", "_rooms")

    def __init__(self, files: Sequence[OpenCgroupFile]) -> None:
        self._files = files
        self._descriptors = array("i", [file.descriptor for file in files])
        self._rooms = [file.room for file in files]
        self._digests = [file.digest for file in files]  # of the content that was last parsed here

    def read(self) -> bool | None:
        """Whether any file has changed; None if each must be read by itself."""
        read: list[bytes] = []
        amiss = False
        try:
            read.extend(map(os.pread, self._descriptors, self._rooms, _FROM_START))
        except OSError:
            amiss = True
        # The directories of a job are removed one by one: what could be read now is final.
        changed = list(compress(count(), map(ne, map(hash, read), self._digests)))
        for number in changed:
            file, data = self._files[number], read[number]
            amiss |= file.overflows(data) or not file.take(data)
            self._digests[number] = file.digest
        return None if amiss else bool(changed)


def read_all(descriptor: int, room: int = _PAGE) -> bytes:
    """The whole file behind a descriptor, from its start; `room` bytes are more than its size.

    The result is kept, so it must not hold a buffer of a page for each of thousands of files.
    """
    return completed(descriptor, os.pread(descriptor, room, 0), room)


def completed(descriptor: int, data: bytes, room: int) -> bytes:
    """The whole file that begins with `data`, the result of a read of `room` bytes.

    A read that falls a few bytes short may not be the last one: of a list such as cgroup.procs, the
    kernel returns whole records (filesystems/seq_file.rst). Raises OSError if the file is too
    large.
    """
    if len(data) < room - _RECORD:
        return data
    parts, offset = [data], len(data)
    while part := os.pread(descriptor, 16 * _PAGE, offset):
        parts.append(part)
        offset += len(part)
        if offset > _LARGEST:
            raise OSError(errno.EFBIG, f"larger than {_LARGEST} bytes")
    return b"".join(parts)


def read_path(path: str) -> bytes:
    """The whole file, opened and closed. Raises OSError, also for a file larger than 4 MiB."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_all(descriptor)
    finally:
        os.close(descriptor)


def read_head(path: str, size: int) -> bytes:
    """The first `size` bytes of a file whose length another user controls. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)
