"""Files of cgroup directories: the fields that are read from them, and repeated reading."""

import errno
import os
import sys
from array import array
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import compress, count, repeat
from operator import ne
from typing import Any, NamedTuple

from collectors.jobs.cgroups.formats import Parse

_PAGE_BYTES = 4096
_MAX_RECORD_BYTES = 24  # bytes; longer than a line of cgroup.procs
# Most files are smaller. Together with the header of a `bytes` object this makes 512 bytes, up to
# which Python uses its own allocator instead of malloc().
_INITIAL_BUFFER_BYTES = 512 - sys.getsizeof(b"")
_FROM_START = repeat(0)
# Bytes; cgroup.procs, the longest file, can list 500,000 processes in this size.
_MAX_FILE_BYTES = 4 << 20


SAMPLED = "sampled"
"""The files of all groups of metrics that are read between scrapes as well, as a group."""


class CgroupFile(NamedTuple):
    """A file of a directory, and how it is read.

    `parse` returns field → value and raises ValueError for text that is not in the file's format.
    """

    file: str
    group: str
    parse: Parse
    rare: bool = False  # read at intervals only: a limit or a CPU set
    may_be_empty: bool = False  # other files end with a line feed even if they have no value
    sampled: bool = False  # also read between scrapes, so that short jobs have it

    def belongs_to(self, group: str | None) -> bool:
        """Whether it is read with this group; None means all groups."""
        return group is None or group == self.group or (group == SAMPLED and self.sampled)


class OpenCgroupFile:
    """An existing file: how it is read, and its last values.

    A hash of its text is kept, not the text: the texts of a thousand jobs are megabytes.
    """

    __slots__ = ("_fields", "buffer_bytes", "descriptor", "digest", "source", "values")

    def __init__(self, source: CgroupFile, descriptor: int, values: dict[str, Any]) -> None:
        self.source = source
        self.descriptor = descriptor  # -1: open the file for each read
        self.buffer_bytes = _INITIAL_BUFFER_BYTES  # bytes to read; larger than the file was so far
        self.digest: int | None = None  # hash of the content; None if the content was invalid
        self.values = values  # shared by all files of the directory
        self._fields: tuple[str, ...] = ()  # the fields set by this file

    def update(self, data: bytes) -> bool:
        """Parse the file's current text; False if it is malformed."""
        try:
            if data[-1:] != b"\n" and (data or not self.source.may_be_empty):
                raise ValueError("half a line")
            values, self.digest = self.source.parse(data), hash(data)
        except (ValueError, LookupError):
            values, self.digest = {}, None
        self.replace_values(values)
        return self.digest is not None

    def replace_values(self, values: Mapping[str, Any]) -> None:
        """Replace the values of the file's previous text."""
        fields = tuple(values)
        if fields != self._fields:
            for field in self._fields:
                self.values.pop(field, None)
            self._fields = _field_names(fields)
        self.values.update(values)

    def may_be_truncated(self, data: bytes) -> bool:
        """Whether a read of this size may have left a remainder."""
        return len(data) > self.buffer_bytes - _MAX_RECORD_BYTES


@lru_cache(1000)
def _field_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Share equal tuples of names among all jobs."""
    return fields


class BatchReader:
    """Reads the files of several directories at once, as long as none of them has a problem.

    A scrape reads thousands of files with cold caches: whatever Python touches between two reads
    costs as much as a read.
    """

    __slots__ = ("_buffer_sizes", "_descriptors", "_digests", "_files")

    def __init__(self, files: Iterable[OpenCgroupFile]) -> None:
        self._files = tuple(files)
        self._descriptors = array("i", [file.descriptor for file in self._files])
        self._buffer_sizes = array("i", [file.buffer_bytes for file in self._files])
        self._digests = [file.digest for file in self._files]  # of what was last parsed here

    def read(self) -> bool | None:
        """Read all; returns whether any file has changed, None if each must be read by itself."""
        contents: list[bytes] = []
        needs_single_reads = False
        try:
            contents.extend(map(os.pread, self._descriptors, self._buffer_sizes, _FROM_START))
        except OSError:
            needs_single_reads = True
        # The directories of a job are removed one by one: what could be read now is final.
        changed = list(compress(count(), map(ne, map(hash, contents), self._digests)))
        for index in changed:
            file, data = self._files[index], contents[index]
            needs_single_reads |= file.may_be_truncated(data) or not file.update(data)
            self._digests[index] = file.digest
        return None if needs_single_reads else bool(changed)


def read_all(descriptor: int, buffer_bytes: int = _PAGE_BYTES) -> bytes:
    """The whole file behind a descriptor, from its start; `buffer_bytes` is larger than it.

    The result is kept, so it must not hold a buffer of a page for each of thousands of files.
    """
    return read_rest(descriptor, os.pread(descriptor, buffer_bytes, 0), buffer_bytes)


def read_rest(descriptor: int, data: bytes, buffer_bytes: int) -> bytes:
    """The whole file that begins with `data`, the result of a read of `buffer_bytes`.

    A read that falls a few bytes short may not be the last one: of a list such as cgroup.procs, the
    kernel returns whole records (filesystems/seq_file.rst). Raises OSError if the file is too
    large.
    """
    if len(data) < buffer_bytes - _MAX_RECORD_BYTES:
        return data
    parts, offset = [data], len(data)
    while part := os.pread(descriptor, 16 * _PAGE_BYTES, offset):
        parts.append(part)
        offset += len(part)
        if offset > _MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"larger than {_MAX_FILE_BYTES} bytes")
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
