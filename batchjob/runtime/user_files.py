"""Files in directories that several users may write to: `runs` and `logs` of the data directory.

Whoever may create a file there chooses its name, kind, size, times and content. So a file is opened
without following links, its owner is looked at before its content, and everything that is read or
counted is bounded. Sizes are blocks on the disk (a sparse file has none), and ages are those of the
last change of the inode, which only the kernel sets.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

_MAX_LISTED = 1_000_000  # entries of a directory; what is beyond is not seen
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ForeignFileError(PermissionError):
    """Another user wrote the file."""


@contextmanager
def open_regular_file(
    path: Path, owners: Collection[int] | None = None, writable: bool = False
) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a file that another user may have created; raises OSError.

    Only a regular file is opened: a symbolic link would make us read its target with our rights,
    and a FIFO would block. Owner and mode are those of the opened file, whatever happens to the
    path later. `owners`: the uids whose files are read; None: anybody's.
    """
    flags = (_READ_FLAGS & ~os.O_RDONLY | os.O_RDWR) if writable else _READ_FLAGS
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "expected a regular file, found a symbolic link"
        raise
    with os.fdopen(descriptor, "r+b" if writable else "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "expected a regular file", str(path))
        if owners is not None and status.st_uid not in owners:
            raise ForeignFileError(errno.EPERM, f"uid {status.st_uid} wrote it", str(path))
        yield file, status


def create_file(path: Path) -> int:
    """The descriptor of a new file, of mode 0600; raises OSError if the name exists already."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def replace_file(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace a file as a whole, or leave it as it was; raises OSError.

    `durable`: wait until the data is on disk.
    """
    import tempfile  # which lists of runs do without

    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if mode != 0o600:
                os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:  # leave no temporary file behind, whatever the reason
        Path(temporary).unlink(missing_ok=True)
        raise


def open_lock(path: Path, create: bool = True) -> int:
    """The descriptor of a file to be locked, which other processes have open too."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags | os.O_CREAT if create else flags, 0o600)


def touch_own(path: Path) -> None:
    """Create an empty file of one's own, in place of a link or another user's; raises OSError."""
    try:
        os.close(create_file(path))
    except FileExistsError:
        if is_own_file(path):
            os.utime(path, follow_symlinks=False)
            return
        path.unlink()
        os.close(create_file(path))


def other_name(path: Path) -> Path:
    """`<stem>.<random><suffix>`, for when another user's file has the name that one's own needs.

    In a sticky directory that file cannot be replaced, and nobody can guess this name.
    """
    return path.with_name(f"{path.stem}.{os.urandom(8).hex()}{path.suffix}")


def is_own_file(path: Path) -> bool:
    """Whether it is a regular file of this process's user, and no second name of another file."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_single = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_single and status.st_uid == os.geteuid()


def list_directory(path: Path) -> list[tuple[Path, os.stat_result]]:
    """The paths in a directory with their own status, of links too.

    Raises OSError, also for a link to a directory.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        found = []
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, _MAX_LISTED):
                with contextlib.suppress(OSError):  # deleted in the meantime
                    found.append((path / entry.name, entry.stat(follow_symlinks=False)))
        return found
    finally:
        os.close(descriptor)
