"""Reads files and lists of cgroup directories, any of which may be removed, and counts errors."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from collectors.host import read_path


def is_gone(error: OSError) -> bool:
    """Whether the error means that the cgroup directory no longer exists."""
    return error.errno in (errno.ENOENT, errno.ENODEV)


# All reasons that are counted, from 0 on, so that an increase includes the first error.
_REASONS = (
    "container_state", "denied", "descriptors", "directories", "ended_unseen", "helper_late",
    "helper_restarted", "interfaces", "malformed", "namespace", "other", "processes", "stuck",
    "unsupported", "untrusted", "watch",
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
        with self._lock:
            return dict(self._counts)


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
