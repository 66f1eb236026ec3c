"""Writes a sample file, which is a complete gzip file after each sample, and after a crash.

Each sample is compressed and flushed by itself in place of the trailer, and a new trailer follows
(RFC 1952): `zcat` can read the file while it is being written. That takes more space than
compressing all samples together, so a file is repacked when it is complete. Nothing is lost at any
moment: the new file replaces the old one when it is complete.
"""

import contextlib
import errno
import fcntl
import os
import struct
import time
import zlib
from pathlib import Path

from batchjob.quantities.sample import JobSample, SampleHeader
from batchjob.runtime.user_files import replace_file
from batchjob_stats_db.samples.file import SampleFile, encode_line

SUFFIX = ".jsonl.gz"
_MAX_ATTEMPTS = 100
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\2\3"  # deflate, no timestamp, maximum compression, Unix
_LAST_BLOCK, _CHECKSUM_AND_SIZE = b"\3\0", struct.Struct("<II")

# A window of 4 kB holds the last samples. With zlib's default window of 32 kB, and its default
# memory level, each running job would cost 400 kB instead of 32.
_LIVE_WINDOW, _LIVE_MEMORY = 12, 5


class Writer:
    """One file of a job's samples, from its first to its last."""

    def __init__(self, folder: Path, header: SampleHeader, now: float) -> None:
        """Create the folder, and a file in it named by the time; raises OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self._descriptor = _create_file(folder, now)
        self._header = header
        self._compressor = zlib.compressobj(9, zlib.DEFLATED, -_LIVE_WINDOW, _LIVE_MEMORY)
        self._checksum = self._size = 0  # of the uncompressed text
        self._trailer = b""
        self.bytes = 0

    def write(self, sample: JobSample) -> None:
        """Append a sample; after an OSError the file is unchanged, and must be closed."""
        text = encode_line(self._header, sample)
        compressed = self._compressor.compress(text) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._checksum, self._size = zlib.crc32(text, self._checksum), self._size + len(text)
        trailer = _LAST_BLOCK + _CHECKSUM_AND_SIZE.pack(self._checksum, self._size & 0xFFFFFFFF)
        self._append((b"" if self.bytes else _HEADER) + compressed, trailer)

    def close(self) -> None:
        """Close the file, and remove it if it is empty. It is closed even if OSError is raised."""
        try:
            if not self.bytes:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)

    def _append(self, compressed: bytes, trailer: bytes) -> None:
        """Write all or nothing: on a full disk, a partial write is undone."""
        at = self.bytes - len(self._trailer)
        try:
            written = os.pwrite(self._descriptor, compressed + trailer, at)
            if written < len(compressed + trailer):
                raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        except OSError:
            os.ftruncate(self._descriptor, self.bytes)
            # There is space for it: it was there before.
            os.pwrite(self._descriptor, self._trailer, at)
            raise
        self.bytes, self._trailer = at + written, trailer


def _create_file(folder: Path, now: float) -> tuple[Path, int]:
    """A new file; another node, or a clock that was set back, may have taken its name."""
    for second in range(int(now), int(now) + _MAX_ATTEMPTS):
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(second)) + SUFFIX
        path = folder / name
        try:
            descriptor = os.open(path, _CREATE_FLAGS, 0o600)
        except FileExistsError:
            continue
        # A file without this lock has no writer any more.
        with contextlib.suppress(OSError):  # some network file systems do not support locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path, descriptor
    raise FileExistsError(errno.EEXIST, "File exists", str(path))


def repack(path: Path) -> None:
    """Repack a file that nobody writes any more, and make it read-only; raises OSError.

    A file that is repacked already, damaged, or being written is left as it is.
    """
    if not path.stat().st_mode & 0o200:
        return
    with SampleFile(path) as file:
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        text = b"".join(line + b"\n" for line in file.lines())
        if not text or file.damage:
            return
        compressor = zlib.compressobj(9, zlib.DEFLATED, 16 + 15, 9)
        status = path.stat()
        content = compressor.compress(text) + compressor.flush()
        replace_file(path, content, mode=0o400, durable=True)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
