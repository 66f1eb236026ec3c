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
from typing import Self

from batchjob.quantities.sample import JobSample, SampleHeader
from batchjob_stats_db.samples.format import Decoder, LineError

_GZIP = 31  # zlib's wbits for a 32 kB window and a gzip header
_CHUNK_BYTES = 1 << 16
LONGEST_LINE = 1 << 20
TRAILER_BYTES = 10
"""An empty last block, checksum and size: RFC 1951, 3.2.3, and RFC 1952, 2.3.1."""


class Unpacker:
    """The lines of a gzip file of one or several members, as far as it has been written."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("rb", buffering=0)
        self._decompressor = zlib.decompressobj(_GZIP)
        self._partial_line = b""  # an incomplete line
        self._offset = 0  # offset up to which the file has been processed
        self._last_size = -1  # file size at the last read
        # Why nothing after this point can be read; "" also if it is only not written yet.
        self.damage = ""

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    @property
    def is_being_written(self) -> bool:
        """Whether a writer has the file open: it holds a lock."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """The complete lines that are new since the last call; raises OSError."""
        size = os.fstat(self.descriptor).st_size
        if size == self._last_size:
            return
        self._last_size = size
        self._file.seek(self._offset)
        while not self.damage and self._offset < size - TRAILER_BYTES:
            compressed = self._file.read(min(_CHUNK_BYTES, size - TRAILER_BYTES - self._offset))
            self._offset += len(compressed)
            yield from self._decompressed_lines(compressed)
        if not self.damage:
            yield from self._tail_lines(self._file.read(TRAILER_BYTES))

    def _tail_lines(self, compressed: bytes) -> list[bytes]:
        """The lines in the last bytes; none while a writer replaces them."""
        decompressor, partial_line = self._decompressor.copy(), self._partial_line
        found = list(self._decompressed_lines(compressed))
        if (self.damage or not self._decompressor.eof) and self.is_being_written:
            found, self.damage = [], ""
        self._decompressor, self._partial_line = decompressor, partial_line
        return found

    def _decompressed_lines(self, compressed: bytes) -> Iterator[bytes]:
        while compressed and not self.damage:
            text, compressed = self._decompress(compressed)
            *complete, self._partial_line = (self._partial_line + text).split(b"\n")
            yield from complete
            if len(self._partial_line) > LONGEST_LINE:
                self.damage = f"a line of more than {LONGEST_LINE} bytes"

    def _decompress(self, compressed: bytes) -> tuple[bytes, bytes]:
        """Some text, and the remaining input: in parts, since a malicious file may expand a lot."""
        if self._decompressor.eof:
            self._decompressor = zlib.decompressobj(_GZIP)
        before = self._decompressor.copy()
        try:
            text = self._decompressor.decompress(compressed, _CHUNK_BYTES)
        except zlib.error as error:
            self.damage = f"not gzip after this point: {error}"
            return _decompress_until_damage(before, compressed), b""
        decompressor = self._decompressor
        return text, decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail


def _decompress_until_damage(decompressor: "zlib._Decompress", compressed: bytes) -> bytes:
    """What can be decompressed before the damage; zlib itself discards it."""
    text = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(len(compressed)):
            text += decompressor.decompress(
                decompressor.unconsumed_tail + compressed[at : at + 1], _CHUNK_BYTES
            )
    return bytes(text)


class SampleFile(Unpacker):
    """The samples of one file."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        super().__init__(path)
        self.path = path
        self.decoder = Decoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def header(self) -> SampleHeader | None:
        """The job of the samples, from the first line; None if there is none yet."""
        return self.decoder.header

    @property
    def is_complete(self) -> bool:
        """Whether the file is complete: it was repacked."""
        return not os.fstat(self.descriptor).st_mode & 0o200

    @property
    def is_replaced(self) -> bool:
        """Whether another file has its name now, or none: it was repacked, or deleted."""
        try:
            there = self.path.stat()
        except OSError:
            return True
        mine = os.fstat(self.descriptor)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def read(self) -> Iterator[JobSample]:
        """The samples that are new since the last call; raises OSError."""
        return (JobSample(at, dict(self.decoder.values)) for at in self.times())

    def times(self) -> Iterator[float]:
        """Like `read`, but cheaper: the time of each sample; its values are in `decoder.values`."""
        if self.damage:
            return
        for line in self.lines():
            try:
                yield self.decoder.advance(line)
            except LineError as error:
                self.damage = str(error)
                return
