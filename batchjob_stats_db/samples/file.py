"""Reads a sample file: complete, truncated, damaged, or while it is being written.

A file that is being written is a complete gzip file at every moment: each new sample replaces the
trailer, and is followed by a new one. So the last bytes may be replaced; everything before them
stays.
"""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from batchjob.quantities.sample import JobSample, SampleHeader
from batchjob_stats_db.samples.format import Decoder, LineError

_GZIP = 31  # zlib's wbits for a 32 kB window and a gzip header
_PIECE = 1 << 16
LONGEST_LINE = 1 << 20
TRAILER_BYTES = 10
"""An empty last block, checksum and size: RFC 1951, 3.2.3, and RFC 1952, 2.3.1."""


class Unpacker:
    """The lines of a gzip file of one or several members, as far as it has been written."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("rb", buffering=0)
        self._member = zlib.decompressobj(_GZIP)
        self._rest = b""  # an incomplete line
        self._at = 0  # offset up to which the file has been processed
        self._seen = -1  # file size at the last read
        self.damage = ""  # why nothing after this point can be read

    @property
    def descriptor(self) -> int:
        """Of the open file."""
        return self._file.fileno()

    @property
    def written(self) -> bool:
        """Somebody is writing it now: its writer holds a lock."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """The complete lines that are new since the last call; raises OSError."""
        size = os.fstat(self.descriptor).st_size
        if size == self._seen:
            return
        self._seen = size
        self._file.seek(self._at)
        while not self.damage and self._at < size - TRAILER_BYTES:
            packed = self._file.read(min(_PIECE, size - TRAILER_BYTES - self._at))
            self._at += len(packed)
            yield from self._unpacked(packed)
        if not self.damage:
            yield from self._tail(self._file.read(TRAILER_BYTES))

    def _tail(self, packed: bytes) -> list[bytes]:
        """The lines in the last bytes; none while a writer replaces them."""
        member, rest = self._member.copy(), self._rest
        found = list(self._unpacked(packed))
        if (self.damage or not self._member.eof) and self.written:
            found, self.damage = [], ""
        self._member, self._rest = member, rest
        return found

    def _unpacked(self, packed: bytes) -> Iterator[bytes]:
        while packed and not self.damage:
            text, packed = self._unpack(packed)
            *whole, self._rest = (self._rest + text).split(b"\n")
            yield from whole
            if len(self._rest) > LONGEST_LINE:
                self.damage = f"a line of more than {LONGEST_LINE} bytes"

    def _unpack(self, packed: bytes) -> tuple[bytes, bytes]:
        """Some text, and the remaining input: a malicious file is decompressed in parts."""
        if self._member.eof:
            self._member = zlib.decompressobj(_GZIP)
        before = self._member.copy()
        try:
            text = self._member.decompress(packed, _PIECE)
        except zlib.error as error:
            self.damage = f"not gzip after this point: {error}"
            return _until_damage(before, packed), b""
        member = self._member
        return text, member.unused_data if member.eof else member.unconsumed_tail


def _until_damage(member: "zlib._Decompress", packed: bytes) -> bytes:
    """What can be decompressed before the damage; zlib itself discards it."""
    text = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(len(packed)):
            text += member.decompress(member.unconsumed_tail + packed[at : at + 1], _PIECE)
    return bytes(text)


class SampleFile:
    """The samples of one file."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.decoder = Decoder()
        self._unpacker = Unpacker(path)
        self._damage = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._unpacker.close()

    @property
    def who(self) -> SampleHeader | None:
        """The job of the samples, from the first line; None if there is none yet."""
        return self.decoder.who

    @property
    def damage(self) -> str:
        """Why the rest of the file cannot be read; "" if it can, or is only not written yet."""
        return self._damage or self._unpacker.damage

    @property
    def ended(self) -> bool:
        """Whether the file is complete: it was repacked."""
        return not os.fstat(self._unpacker.descriptor).st_mode & 0o200

    @property
    def replaced(self) -> bool:
        """Whether another file has its name now, or none: it was repacked, or deleted."""
        try:
            there = self.path.stat()
        except OSError:
            return True
        mine = os.fstat(self._unpacker.descriptor)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    @property
    def written(self) -> bool:
        """Somebody is writing it now."""
        return self._unpacker.written

    def read(self) -> Iterator[JobSample]:
        """The samples that are new since the last call; raises OSError."""
        return (JobSample(at, dict(self.decoder.values)) for at in self.times())

    def times(self) -> Iterator[float]:
        """The same, cheaper: the time of each sample, with its numbers in `decoder.values`."""
        if self._damage:
            return
        for line in self._unpacker.lines():
            try:
                yield self.decoder.advance(line)
            except LineError as error:
                self._damage = str(error)
                return
