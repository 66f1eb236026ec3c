"""The machine that a collector reads: its clocks, and its file systems, which may lack any file."""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from batchjob.runtime.settings import option


class Moment(NamedTuple):
    """A point in time: `epoch` is for display, `monotonic` for durations."""

    epoch: float  # Unix time; the clock may be changed
    monotonic: float  # seconds

    def at(self, epoch: float) -> "Moment":
        """The moment of another epoch time, by the current offset between the clocks."""
        return Moment(epoch, self.monotonic - (self.epoch - epoch))


@dataclass(frozen=True)
class Host:
    """The paths of the machine and its clocks; tests point them at recorded trees."""

    procfs: str = option("/proc", "Mount point of procfs.", metavar="DIR")
    sysfs: str = option("/sys", "Mount point of sysfs.", metavar="DIR")
    cgroupfs: str = option("/sys/fs/cgroup", "Mount point of cgroupfs.", metavar="DIR")
    dev: str = option("/dev", "Directory of device files.", metavar="DIR")
    helper: str = option(
        "/run/batchjob_helper/socket", "Socket of batchjob_helper, if it runs.", metavar="FILE"
    )
    state: str = option(
        "",
        "Directory in which counters are kept across restarts; default: $STATE_DIRECTORY, if set.",
        metavar="DIR",
    )
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def now(self) -> Moment:
        return Moment(self.clock(), self.monotonic())

    @property
    def state_directory(self) -> str:
        """The directory, or "" (systemd.exec(5): several are separated by colons)."""
        return self.state or os.environ.get("STATE_DIRECTORY", "").partition(":")[0]


_PAGE_BYTES = 4096
MAX_RECORD_BYTES = 24  # bytes; longer than a line of cgroup.procs
# Bytes; cgroup.procs, the longest file, can list 500,000 processes in this size.
_MAX_FILE_BYTES = 4 << 20
_MAX_CHARACTERS = 1 << 20  # mig-minors of 32 GPUs has a tenth of it


def list_directory(path: str) -> list[str]:
    """The sorted names in a directory; none if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def read_text(path: str) -> str:
    """A file's text without white space around it, at most 1 Mi characters; "" if unreadable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARACTERS).strip()
    except OSError:
        return ""


def read_rest(descriptor: int, data: bytes, buffer_bytes: int) -> bytes:
    """The whole file that begins with `data`, the result of a read of `buffer_bytes`.

    A read that falls a few bytes short may not be the last one: of a list such as cgroup.procs, the
    kernel returns whole records (filesystems/seq_file.rst). Raises OSError if it is too large.
    """
    if len(data) < buffer_bytes - MAX_RECORD_BYTES:
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
        return read_rest(descriptor, os.pread(descriptor, _PAGE_BYTES, 0), _PAGE_BYTES)
    finally:
        os.close(descriptor)


def read_head(path: str, size: int) -> bytes:
    """The first `size` bytes of a file whose length another user controls. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)
