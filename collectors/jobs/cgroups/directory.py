"""The files of a job's cgroup directories, and their repeated reading with open descriptors."""

import errno
import os
import sys
import threading
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, count, repeat
from operator import ne
from typing import Any

from collectors.host import MAX_RECORD_BYTES, read_path, read_rest
from collectors.jobs.cgroups import reader, v2
from collectors.jobs.cgroups.formats import CgroupFile

# Most files are smaller. Together with the header of a `bytes` object this makes 512 bytes, up to
# which Python uses its own allocator instead of malloc().
_INITIAL_BUFFER_BYTES = 512 - sys.getsizeof(b"")
_FROM_START = repeat(0)


class CgroupDirectory:
    """One directory: its files, and the values that were last read of them.

    After the directory's removal, reading a descriptor that is open returns ENODEV (kernfs), so it
    can never show another cgroup's numbers. Not thread-safe: the job that owns it has the lock.

    A node can have thousands of these. Sequences that rarely change are tuples, which need less
    memory than lists.
    """

    __slots__ = (
        "_descriptors", "_errors", "_inode", "_missing", "_mount", "files", "path", "values",
        "was_removed",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        sources: Iterable[CgroupFile],
        descriptors: threading.Semaphore,
        errors: reader.ReadErrors,
        mount: str = "",
    ) -> None:
        """`descriptors`: how many may be open; beyond that, files are opened for each read.

        `mount`: of cgroup v2, up to which the limits of ancestors are read as well.
        """
        self.path = path
        self.values: dict[str, Any] = {}
        """Field → value, as last read."""
        self.files: tuple[OpenCgroupFile, ...] = ()
        """The existing files."""
        self._mount = mount
        self._descriptors = descriptors
        self._errors = errors
        self._missing = tuple(sources)
        self._inode = 0  # not known yet
        self.was_removed = False
        self.was_removed = self.is_removed()

    def frequent_files(self, group: str | None = None) -> list["OpenCgroupFile"]:
        """The existing files, or one group's, that change with the job's work."""
        return [
            file for file in self.files if not file.source.rare and file.source.belongs_to(group)
        ]

    def find_files(self) -> None:
        """Open the files that exist; missing ones are tried again later."""
        files = [self._open(source) for source in self._missing]
        found = tuple(file for file in files if file is not None)
        if found:
            self.files += found
            opened = {file.source.file for file in found}
            self._missing = tuple(each for each in self._missing if each.file not in opened)

    def read_limit(self) -> None:
        """Read the limit of memory, for which also the directories above count."""
        if self._mount:
            self.values.pop(v2.LIMIT_FIELD, None)
            limit = v2.memory_limit(self.path, self._mount)
            if limit is not None:
                self.values[v2.LIMIT_FIELD] = limit

    def is_removed(self) -> bool:
        """Whether the directory no longer exists, or has been replaced by another of its name."""
        if self.was_removed:
            return True
        try:
            inode = os.stat(self.path).st_ino
        except OSError as error:
            return reader.is_gone(error)
        self._inode = self._inode or inode
        return inode != self._inode

    def drop_file(self, file: "OpenCgroupFile") -> None:
        """Treat a file that cannot be read, such as pressure with PSI off, as missing."""
        self.files = tuple(each for each in self.files if each is not file)
        self._missing += (file.source,)
        file.replace_values({})
        self._close([file])

    def close(self) -> None:
        """Close every descriptor; nothing can be read afterwards."""
        self._close(self.files)
        self.files = self._missing = ()

    def _open(self, source: CgroupFile) -> "OpenCgroupFile | None":
        try:
            descriptor = os.open(f"{self.path}/{source.file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._errors.count(error)
            return None
        if not self._descriptors.acquire(blocking=False):
            os.close(descriptor)
            descriptor = -1
        return OpenCgroupFile(source, descriptor, self)

    def _close(self, files: Iterable["OpenCgroupFile"]) -> None:
        for file in files:
            if file.descriptor >= 0:
                os.close(file.descriptor)
                self._descriptors.release()


@dataclass(slots=True, eq=False)
class OpenCgroupFile:
    """An existing file: how it is read, and its last values.

    A hash of its text is kept, not the text: the texts of a thousand jobs are megabytes.
    """

    source: CgroupFile
    descriptor: int  # -1: open the file for each read
    directory: CgroupDirectory
    buffer_bytes: int = _INITIAL_BUFFER_BYTES  # bytes to read; larger than the file was so far
    digest: int | None = None  # hash of the content; None if the content was invalid
    _fields: tuple[str, ...] = ()  # the fields set by this file

    def complete(self, data: bytes | OSError) -> bytes:
        """The whole text after a read that failed, or may have left a remainder. Raises OSError."""
        if self.descriptor < 0:
            return read_path(f"{self.directory.path}/{self.source.file}")
        if isinstance(data, OSError):
            raise data
        data = read_rest(self.descriptor, data, self.buffer_bytes)
        self.buffer_bytes = 2 * len(data)
        return data

    def update(self, data: bytes) -> None:
        """Parse the file's current text; raises ValueError or LookupError if it is malformed."""
        values: Mapping[str, Any] = {}
        self.digest = None
        try:
            if data[-1:] != b"\n" and (data or not self.source.may_be_empty):
                raise ValueError("half a line")
            values, self.digest = self.source.parse(data), hash(data)
        finally:
            self.replace_values(values)

    def replace_values(self, values: Mapping[str, Any]) -> None:
        fields, all_values = tuple(values), self.directory.values
        if fields != self._fields:
            for field in self._fields:
                all_values.pop(field, None)
            self._fields = _field_names(fields)
        all_values.update(values)


@lru_cache(1000)
def _field_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Share equal tuples of names among all jobs."""
    return fields


class FileReader:
    """Reads files of several directories, all of them at once.

    Reading a descriptor that stays open, from offset 0, costs a fifth of open, read and close. A
    scrape reads thousands of files with cold caches: whatever Python touches between two reads
    costs as much as a read.
    """

    __slots__ = ("_buffer_sizes", "_descriptors", "_digests", "_files")

    def __init__(self, files: Iterable[OpenCgroupFile]) -> None:
        self._files = tuple(files)
        self._descriptors = array("i", [file.descriptor for file in self._files])
        self._buffer_sizes = array("i", [file.buffer_bytes for file in self._files])
        self._digests = [file.digest for file in self._files]  # of what was last parsed here

    def read(self) -> tuple[bool, list[tuple[OpenCgroupFile, Exception]]]:
        """Read all; returns whether any file has changed, and those that failed.

        The directories of a job are removed one by one: what can be read now may be final. The
        fields of a file that is malformed are absent.
        """
        contents: list[bytes | OSError] = []
        reads = map(os.pread, self._descriptors, self._buffer_sizes, _FROM_START)
        while len(contents) < len(self._files):
            try:
                contents.extend(reads)
            except OSError as error:  # also for a file that is opened for each read
                contents.append(error.with_traceback(None))  # it would keep all contents
        changed = False
        failed: list[tuple[OpenCgroupFile, Exception]] = []
        for index in compress(count(), map(ne, map(hash, contents), self._digests)):
            file, data = self._files[index], contents[index]
            try:
                if (
                    isinstance(data, OSError)
                    or len(data) > self._buffer_sizes[index] - MAX_RECORD_BYTES
                ):
                    data = file.complete(data)
                    self._buffer_sizes[index] = file.buffer_bytes
                    if hash(data) == self._digests[index]:
                        continue
                changed = True
                file.update(data)
            except (OSError, ValueError, LookupError) as error:
                changed = True
                failed.append((file, error))
            self._digests[index] = file.digest
        return changed, failed
