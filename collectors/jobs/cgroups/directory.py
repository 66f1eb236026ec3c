"""One cgroup directory: which files are read, how, and with which descriptors."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from collectors.jobs.cgroups.reader import CgroupFile, OpenCgroupFile, read_path, read_rest

_NO_LIMITS: Mapping[str, Any] = {}


class CgroupGone(Exception):
    """The directory was removed; what was read of it before is final."""


def is_gone(error: OSError) -> bool:
    """Whether the error means that the cgroup directory no longer exists."""
    return error.errno in (errno.ENOENT, errno.ENODEV)


# All reasons that are counted, from 0 on, so that an increase includes the first error.
_REASONS = (
    "denied", "descriptors", "directories", "ended_unseen", "interfaces", "malformed", "namespace",
    "other", "processes", "stuck", "unsupported", "untrusted", "watch",
)  # fmt: skip


class ReadErrors:
    """Counts read errors by reason. Thread-safe."""

    REASONS: Mapping[int, str] = {
        errno.EACCES: "denied",
        errno.EPERM: "denied",
        errno.EOPNOTSUPP: "unsupported",
        errno.EMFILE: "descriptors",
        errno.ENFILE: "descriptors",
    }

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        self._lock = threading.Lock()

    def count(self, reason: str | OSError | ValueError) -> None:
        """Count an error, by a given reason, by the kernel's error, or as malformed text."""
        if isinstance(reason, OSError):
            word = self.REASONS.get(reason.errno or 0, "other")
        else:
            word = reason if isinstance(reason, str) else "malformed"
        with self._lock:
            self._counts[word] += 1

    def counts(self) -> dict[str, int]:
        """How often each reason has occurred since start."""
        with self._lock:
            return dict(self._counts)


class DescriptorBudget:
    """The maximum number of open descriptors; beyond it, files are opened for each read."""

    def __init__(self, limit: int) -> None:
        self._available = limit
        self._lock = threading.Lock()

    def acquire(self) -> bool:
        """Reserve a descriptor; False if none is left."""
        with self._lock:
            if self._available <= 0:
                return False
            self._available -= 1
            return True

    def release(self, number: int) -> None:
        """Return reserved descriptors."""
        with self._lock:
            self._available += number


class CgroupDirectory:
    """Reads one cgroup directory repeatedly.

    Reading a descriptor that stays open, from offset 0, costs a fifth of open, read and close;
    after the directory's removal it returns ENODEV (kernfs), so it can never show another cgroup's
    numbers. Not thread-safe: the job that owns it has the lock.

    A node can have thousands of these. Sequences that rarely change are tuples, which need less
    memory than lists.
    """

    __slots__ = (
        "_descriptors", "_errors", "_inode", "_limits", "_missing", "_present", "_read_limits",
        "_was_removed", "path", "values",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        sources: Iterable[CgroupFile],
        descriptors: DescriptorBudget,
        errors: ReadErrors,
        read_limits: Callable[[], Mapping[str, Any]] = lambda: _NO_LIMITS,
    ) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        """Field → value, as last read."""
        self._read_limits = read_limits
        self._descriptors = descriptors
        self._errors = errors
        self._missing = tuple(sources)
        self._present: tuple[OpenCgroupFile, ...] = ()
        self._limits = _NO_LIMITS  # the last result of `read_limits`
        self._inode = 0  # not known yet
        self._was_removed = False
        self._was_removed = self.is_removed()

    def read(self, refresh: bool, group: str | None = None) -> bool:
        """Read all existing files, or one group's, into the values. Raises CgroupGone.

        `refresh`: also read limits and look for new files, as in the first read. The fields of a
        file that is missing, unreadable or malformed are absent. Returns False if nothing changed,
        which is so for most jobs most of the time.
        """
        if refresh:
            self._refresh()
        return self._read_files(self.frequent_files(group)) or refresh

    def frequent_files(self, group: str | None = None) -> list[OpenCgroupFile]:
        """The existing files, or one group's, that change with the job's work."""
        return [
            file for file in self._present if not file.source.rare and file.source.belongs_to(group)
        ]

    def _refresh(self) -> None:
        if self.is_removed():
            raise CgroupGone(self.path)
        self._find_files()
        self._read_files([file for file in self._present if file.source.rare])
        for field in self._limits:
            self.values.pop(field, None)
        self._limits = self._read_limits()
        self.values.update(self._limits)

    @property
    def is_kept_open(self) -> bool:
        """Whether all its files are open; descriptors may have run out."""
        return all(file.descriptor >= 0 for file in self.frequent_files())

    def is_removed(self) -> bool:
        """Whether the directory no longer exists, or has been replaced by another of its name."""
        if self._was_removed:
            return True
        try:
            inode = os.stat(self.path).st_ino
        except OSError as error:
            return is_gone(error)
        self._inode = self._inode or inode
        return inode != self._inode

    def close(self) -> None:
        """Close every descriptor; nothing can be read afterwards."""
        kept = [file.descriptor for file in self._present if file.descriptor >= 0]
        for descriptor in kept:
            os.close(descriptor)
        self._descriptors.release(len(kept))
        self._present = self._missing = ()

    def _read_files(self, files: Iterable[OpenCgroupFile]) -> bool:
        """Read files; returns whether any of them has changed. Raises CgroupGone."""
        changed = False
        failed = []
        for file in files:
            try:
                if file.descriptor >= 0:
                    data = os.pread(file.descriptor, file.buffer_bytes, 0)
                else:
                    data = read_path(self._path_of(file.source))
                if hash(data) != file.digest:
                    changed = True
                    self._parse(file, data)
            except OSError as error:
                if error.errno == errno.ENODEV or self.is_removed():
                    raise CgroupGone(self.path) from error
                changed = True
                self._errors.count(error)
                failed.append(file)
        if failed:
            self._drop_failed_files(failed)
        return changed

    def _parse(self, file: OpenCgroupFile, data: bytes) -> None:
        if file.descriptor >= 0 and file.may_be_truncated(data):
            data = read_rest(file.descriptor, data, file.buffer_bytes)
            file.buffer_bytes = 2 * len(data)
        if not file.update(data):
            self._errors.count("malformed")

    def _drop_failed_files(self, failed: Sequence[OpenCgroupFile]) -> None:
        """Treat files that cannot be read, such as pressure with PSI off, as missing."""
        self._present = tuple(file for file in self._present if file not in failed)
        self._missing += tuple(file.source for file in failed)
        for file in failed:
            file.replace_values({})
            if file.descriptor >= 0:
                os.close(file.descriptor)
                self._descriptors.release(1)

    def _find_files(self) -> None:
        """Open the files that exist; missing ones are tried again later. Raises CgroupGone."""
        files = [self._open(source) for source in self._missing]
        found = tuple(file for file in files if file is not None)
        if found:
            self._present += found
            opened = {file.source.file for file in found}
            self._missing = tuple(each for each in self._missing if each.file not in opened)
        if self._missing and self.is_removed():
            raise CgroupGone(self.path)

    def _open(self, source: CgroupFile) -> OpenCgroupFile | None:
        try:
            descriptor = os.open(self._path_of(source), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._errors.count(error)
            return None
        if not self._descriptors.acquire():
            os.close(descriptor)
            descriptor = -1
        return OpenCgroupFile(source, descriptor, self.values)

    def _path_of(self, source: CgroupFile) -> str:
        return f"{self.path}/{source.file}"


def child_names(path: str, unreadable: Callable[[OSError], object] = lambda _: None) -> list[str]:
    """The names of the directories in a directory; none if it is removed meanwhile.

    `unreadable` is called if the directory exists but cannot be listed.
    """
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if not is_gone(error):
            unreadable(error)
        return []


def descendants(path: str, unreadable: Callable[[OSError], object] = lambda _: None) -> list[str]:
    """The directory and all directories below it, without those that are removed meanwhile.

    `unreadable` is called for each existing directory that cannot be listed.
    """
    found = [path]
    for each in found:
        found.extend(f"{each}/{name}" for name in child_names(each, unreadable))
    return found


# The directory was removed, or the cgroup is threaded and its parent lists the processes
# (cgroup-v2.rst).
_NO_LIST_ERRNOS = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP})


def read_pids(
    directories: Iterable[str],
    unreadable: Callable[[OSError | ValueError], object] = lambda _: None,
) -> set[int]:
    """The processes in exactly these cgroup directories.

    0 stands for a process of another pid namespace, which /proc cannot show. `unreadable` is called
    for each existing list that cannot be read.
    """
    pids: set[int] = set()
    for directory in directories:
        try:
            pids.update(map(int, read_path(f"{directory}/cgroup.procs").split()))
        except OSError as error:
            if error.errno not in _NO_LIST_ERRNOS:
                unreadable(error)
        except ValueError as error:
            unreadable(error)
    return pids
