"""Reading a sample file: whole, cut in the middle, damaged, or while it is being written.

The recorder ends what it writes of each sample so that it can be unpacked at once (zlib's partial
flush); a file whose writer was killed so gives everything up to its last sample.
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
from batchjob_stats_db.samples.format import Decoder, LineError, who

_GZIP = 31  # wbits of zlib for a window of 32 kB and gzip's header
_PIECE = 1 << 16
LONGEST_LINE = 1 << 20


class Unpacker:
    """The lines of a gzip file of one or several members, as far as it goes by now."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("rb", buffering=0)
        self._member = zlib.decompressobj(_GZIP)
        self._rest = b""  # of a line
        self.ended = False  # the gzip member is whole; there may be another
        self.damage = ""  # why nothing behind this place can be read

    @property
    def descriptor(self) -> int:
        """Of the open file."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """The whole lines that have come since the last call; raises OSError."""
        while not self.damage and (packed := self._file.read(_PIECE)):
            while packed:
                text, packed = self._unpack(packed)
                *whole, self._rest = (self._rest + text).split(b"\n")
                yield from whole
                if len(self._rest) > LONGEST_LINE:
                    self.damage = f"a line of more than {LONGEST_LINE} bytes"
                if self.damage:
                    return

    def _unpack(self, packed: bytes) -> tuple[bytes, bytes]:
        """Some text, and what is still packed: a file made to blow up is unpacked by pieces."""
        if self._member.eof:
            self._member = zlib.decompressobj(_GZIP)
        before = self._member.copy()
        try:
            text = self._member.decompress(packed, _PIECE)
        except zlib.error as error:
            self.damage = f"not gzip from here on: {error}"
            return _until_damage(before, packed), b""
        self.ended = self._member.eof
        return text, self._member.unused_data if self.ended else self._member.unconsumed_tail


def _until_damage(member: "zlib._Decompress", packed: bytes) -> bytes:
    """What can be unpacked before the place that cannot; zlib itself throws it away."""
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
        self.who: SampleHeader | None = None  # None: not even the first line was there yet
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
    def damage(self) -> str:
        """Why the rest of the file cannot be read; "" where it can, or is only not there."""
        return self._damage or self._unpacker.damage

    @property
    def ended(self) -> bool:
        """Nothing more will be written: the end is there."""
        return self._unpacker.ended

    @property
    def replaced(self) -> bool:
        """The file is no longer the one of that name: it was packed anew, or deleted."""
        try:
            there = self.path.stat()
        except OSError:
            return True
        mine = os.fstat(self._unpacker.descriptor)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    @property
    def written(self) -> bool:
        """Somebody is writing it now: its writer holds a lock."""
        try:
            fcntl.flock(self._unpacker.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._unpacker.descriptor, fcntl.LOCK_UN)
        return False

    def read(self) -> Iterator[JobSample]:
        """The samples that have come since the last call; raises OSError."""
        return (sample for line in self._lines() if (sample := self._sample(line)) is not None)

    def times(self) -> Iterator[float]:
        """The same, cheaper: the time of each, while its numbers stand in `decoder.counts`."""
        for line in self._lines():
            try:
                yield self.decoder.advance(line)
            except LineError as error:
                self._damage = str(error)

    def _sample(self, line: bytes) -> JobSample | None:
        try:
            return self.decoder.sample(line)
        except LineError as error:
            self._damage = str(error)
            return None

    def _lines(self) -> Iterator[bytes]:
        for line in self._unpacker.lines():
            if self._damage:
                return
            if self.who is None:
                try:
                    self.who = who(line)
                except LineError as error:
                    self._damage = str(error)
            else:
                yield line
